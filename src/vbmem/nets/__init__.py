"""Convolutional encoders and decoders (the paper's appendix F), code posteriors and pixel likelihoods."""

from vbmem.nets.blocks import Style
from vbmem.nets.decoder import Decoder
from vbmem.nets.encoder import Encoder
from vbmem.nets.pixels import BernoulliPixels, GaussianPixels, Likelihood, Pixels
from vbmem.nets.posterior import CodeHead, CodePosterior

__all__ = [
    "BernoulliPixels",
    "CodeHead",
    "CodePosterior",
    "Decoder",
    "Encoder",
    "GaussianPixels",
    "Likelihood",
    "Pixels",
    "Style",
]
