"""The tokenizer: SentencePiece BPE with exact round trip, its training, its identity."""

from maxtrain.tokenizer.tokenizer import Tokenizer
from maxtrain.tokenizer.train import train_tokenizer

__all__ = ["Tokenizer", "train_tokenizer"]
