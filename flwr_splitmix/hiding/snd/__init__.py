"""Split-N-Denoise: noise on every token's hidden state, and a denoiser at the client."""

from flwr_splitmix.hiding.snd.denoiser import Denoiser, Denoising
from flwr_splitmix.hiding.snd.noise import clip_to, largest_norm, metric_noise
from flwr_splitmix.hiding.snd.protocol import SnD

__all__ = ["Denoiser", "Denoising", "SnD", "clip_to", "largest_norm", "metric_noise"]
