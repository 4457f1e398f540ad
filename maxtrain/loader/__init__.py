"""From a dataset and a mixture to the global batches of a run; `maxtrain.loader.prefetch` prepares them ahead."""

from maxtrain.loader.assemble import Batch
from maxtrain.loader.fingerprint import Fingerprint, compare_fingerprints
from maxtrain.loader.held_out import HeldOut
from maxtrain.loader.loader import DomainUse, Loader, Piece

__all__ = ["Batch", "DomainUse", "Fingerprint", "HeldOut", "Loader", "Piece", "compare_fingerprints"]
