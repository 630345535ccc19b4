"""One Gaussian blur with circular boundary, 2-D or 3-D. The kernel ends at about 3.3 standard deviations (deepinv's rule)."""

from __future__ import annotations

import torch
from deepinv.physics import Blur, LinearPhysics
from deepinv.physics.functional import gaussian_blur

from dptrain.errors import UsageError


def build(*, image_size: tuple[int, ...], blur_sigma: tuple[float, ...]) -> list[LinearPhysics]:
    """The blur, with a float64 kernel."""
    dim = len(image_size)
    if len(blur_sigma) == 2 and dim == 3:
        raise UsageError(
            f"problem.physics.blur_sigma: {list(blur_sigma)}: in 3-D the blur is isotropic\n    write: one number"
        )
    sigma = blur_sigma * dim if len(blur_sigma) == 1 else blur_sigma
    # deepinv 0.5 fails on float64 3-D kernels; the sum is made exactly 1 again.
    kernel = gaussian_blur(sigma=sigma, dtype=torch.float64 if dim == 2 else torch.float32).double()
    kernel = kernel / kernel.sum()
    if any(n < k for n, k in zip(image_size, kernel.shape[2:], strict=True)):
        raise UsageError(
            f"problem.physics.blur_sigma: {list(blur_sigma)} needs a kernel of {list(kernel.shape[2:])} pixels, "
            f"larger than the image {list(image_size)}"
        )
    return [Blur(filter=kernel, padding="circular")]
