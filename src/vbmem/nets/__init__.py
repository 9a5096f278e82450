"""Encoder-decoder pairs by name (those of the paper's appendix F), code posteriors, pixel likelihoods, and the crisp
decoder."""

from vbmem.nets.blocks import BlockParts
from vbmem.nets.convolutional import convolutional
from vbmem.nets.crisp import CrispDecoder
from vbmem.nets.decoder import Decoder
from vbmem.nets.encoder import Encoder
from vbmem.nets.pixels import BernoulliPixels, FrameFormat, GaussianPixels, Likelihood, Pixels, pixels_class
from vbmem.nets.posterior import CodeHead, CodePosterior
from vbmem.nets.registry import Networks, build_networks, register, register_shortcuts
from vbmem.nets.unet import UNet

__all__ = [
    "BernoulliPixels",
    "BlockParts",
    "CodeHead",
    "CodePosterior",
    "CrispDecoder",
    "Decoder",
    "Encoder",
    "FrameFormat",
    "GaussianPixels",
    "Likelihood",
    "Networks",
    "Pixels",
    "UNet",
    "build_networks",
    "convolutional",
    "pixels_class",
    "register",
    "register_shortcuts",
]
