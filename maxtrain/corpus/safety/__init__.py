"""Safety: personal data, harmful content, licences, blocked hosts, opt-outs, and the audit of all of them."""

from maxtrain.corpus.rules import Rule
from maxtrain.corpus.safety.access import Domains, Licence, OptOut
from maxtrain.corpus.safety.audit import Interval, audit_report, audit_sample, interval, write_audit
from maxtrain.corpus.safety.pii import Pii
from maxtrain.corpus.safety.toxicity import Toxicity, train_toxicity

SAFETY_RULES: tuple[type[Rule], ...] = (OptOut, Licence, Domains, Toxicity, Pii)
"""In running order: what costs nothing first; personal data is replaced in what stays."""

__all__ = [
    "SAFETY_RULES",
    "Domains",
    "Interval",
    "Licence",
    "OptOut",
    "Pii",
    "Toxicity",
    "audit_report",
    "audit_sample",
    "interval",
    "train_toxicity",
    "write_audit",
]
