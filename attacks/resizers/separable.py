"""A resize as two matrices, one an axis; the pixels it never reads, and the smallest change that hides a picture."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy  # its parts are loaded when first used
import torch

from transforms.resizing.resize import axes

#: A smaller weight reads nothing: it is the rounding of a kernel's zero.
NOTHING = 1e-9


class KernelAxis(NamedTuple):
    """One axis of a resize between crops: source pixels `start` to `start + length` are resized to `virtual` pixels,
    of which `out` are kept, from `offset` on."""

    start: int
    length: int
    virtual: int
    offset: int
    out: int

    @property
    def source(self) -> slice:
        return slice(self.start, self.start + self.length)

    @property
    def output(self) -> slice:
        return slice(self.offset, self.offset + self.out)

    @property
    def visible(self) -> slice:
        """The source pixels from the outer edge of the first kept pixel to that of the last."""
        scale = self.length / self.virtual
        start, stop = (self.start + round(scale * at) for at in (self.offset, self.offset + self.out))
        return slice(start, stop)


#: Rows and columns.
Axes = tuple[KernelAxis, KernelAxis]


def full_axis(length: int, out: int) -> KernelAxis:
    return KernelAxis(0, length, out, 0, out)


@dataclass(frozen=True)
class Separable:
    """The linear map X -> `rows` X `columns`^T of pictures (...,H,W); `rows` (h,H) and `columns` (w,W) in float64."""

    rows: np.ndarray
    columns: np.ndarray

    def crop(self, window: tuple[slice, slice]) -> "Separable":
        return Separable(self.rows[:, window[0]], self.columns[:, window[1]])

    def __call__(self, pictures: np.ndarray) -> np.ndarray:
        return np.asarray(self.rows @ pictures @ self.columns.T)


def kernel_matrices(kernel: str, axis: Axes, size: tuple[int, int]) -> Separable:
    """The matrices of a kernel of `transforms.resizing.resize.NAMES` on a picture of `size` (H, W), with crops."""
    a, b = axis
    matrices = axes((a.length, b.length), (a.virtual, b.virtual), kernel, torch.zeros(1, dtype=torch.float64))
    wide = []
    for part, length, matrix in zip(axis, size, matrices, strict=True):
        wide.append(np.zeros((part.out, length)))
        wide[-1][:, part.source] = matrix.numpy()[part.output]
    return Separable(*wide)


def unread(resizer: Separable, threshold: float = NOTHING) -> float:
    """The share of source pixels that no output pixel reads. Pixel (i,j) is read if row i and column j both are."""
    rows, columns = ((np.abs(matrix) > threshold).any(0) for matrix in (resizer.rows, resizer.columns))
    return 1 - float(rows.mean()) * float(columns.mean())


def hidden_gain(resizer: Separable, viewer: Separable) -> float:
    """The largest energy that a perturbation unseen by `viewer` has for `resizer`: max |R d|^2 / |d|^2 over V d = 0,
    times source pixels per output pixel.

    So energies are means over pixels, and the gain of a shift of the whole picture by a constant is 1. A kernel that
    copies one pixel of r x r has at most r^2.

    R is A (x) B, and the projector on what V sees is P (x) Q, so the matrix whose largest eigenvalue this is,
    R (1 - P (x) Q) R^T, is a difference of two Kronecker products, and is never formed.
    """
    pairs = []
    for matrix, other in ((resizer.rows, viewer.rows), (resizer.columns, viewer.columns)):
        visible = matrix @ scipy.linalg.orth(other.T)
        pairs.append((matrix @ matrix.T, visible @ visible.T))
    (a, p), (b, q) = pairs

    def product(vector: np.ndarray) -> np.ndarray:
        x = vector.reshape(len(a), len(b))
        return np.asarray(a @ x @ b - p @ x @ q).ravel()

    start = np.random.default_rng(0).standard_normal(len(a) * len(b))  # else ARPACK draws its own
    if np.linalg.norm(product(start)) <= NOTHING * np.linalg.norm(start):
        return 0.0  # nothing is hidden, and ARPACK would not converge on rounding
    operator = scipy.sparse.linalg.LinearOperator((start.size, start.size), matvec=product, dtype=np.float64)
    largest = scipy.sparse.linalg.eigsh(operator, k=1, v0=start, tol=1e-4, return_eigenvectors=False)[0]
    source = resizer.rows.shape[1] * resizer.columns.shape[1]
    return float(max(0.0, largest) * source / start.size)


#: The attack succeeds where the resized picture is this near to its target (root mean square): 30 dB.
TOLERANCE = 8 / 255
#: What the solver asks of itself, so that rounding to 8 bits does not lead beyond the tolerance.
_INNER = 0.95 * TOLERANCE
#: Alternating projections; a kernel of a library needs at most five.
_PROJECTIONS = 100
#: Times that the attack is corrected by what the resizer returned.
_CORRECTIONS = 5
#: A picture of 8 bits as values (...,H,W) in [0,1] -> (...,h,w), as the resizer really does it.
Call = Callable[[np.ndarray], np.ndarray]


def hide_picture(
    picture: np.ndarray, target: np.ndarray, resizer: Separable, call: Call
) -> tuple[np.ndarray, np.ndarray]:
    """Change `picture` (...,H,W) as little as possible, so that `call` makes `target` (...,h,w) of it, to within
    `TOLERANCE`; both in [0,1]. `resizer` holds the weights of `call`; what it adds to them is taken off the target,
    up to five times. Returns the attacked picture, of whole 255ths, and what `call` makes of it."""
    aim = target
    for _ in range(_CORRECTIONS):
        changed_picture = np.rint(nearest_picture(picture, aim, resizer, _INNER) * 255) / 255
        resized = call(changed_picture)
        missing = target - resized
        if rms(missing) <= TOLERANCE:
            break
        aim = aim + missing
    return changed_picture, resized


def nearest_picture(picture: np.ndarray, target: np.ndarray, resizer: Separable, tolerance: float) -> np.ndarray:
    """The picture in [0,1] nearest to `picture` in the Euclidean norm among those that `resizer` turns into `target`
    up to a root mean square of `tolerance`.

    It is the projection on an intersection of two convex sets, by Dykstra's algorithm (Boyle & Dykstra 1986). The
    projection on the box [0,1] is a clip. The one on |R x - t| <= e is x + R^T (R R^T + m)^-1 (t - R x), with the
    m >= 0 for which the rest has length e; with the singular values of both matrices that is an elementwise division.
    Where no picture reaches the target, the last iterate is returned.
    """
    (u, s, v), (y, z, w) = (np.linalg.svd(m, full_matrices=False) for m in (resizer.rows, resizer.columns))
    values, length = np.outer(s, z), tolerance * np.sqrt(target.size)
    at, tube, box = picture, np.zeros_like(picture), np.zeros_like(picture)
    for _ in range(_PROJECTIONS):
        point = at + tube
        rest = u.T @ (target - resizer(point)) @ y
        inside = point + v.T @ (rest * values / (values**2 + _ridge(rest, values, length))) @ w
        tube = point - inside
        at = (inside + box).clip(0, 1)
        box = inside + box - at
        if np.linalg.norm(target - resizer(at)) <= 1.001 * length:
            break
    return at


def _ridge(rest: np.ndarray, values: np.ndarray, length: float) -> float:
    """The m with |rest m / (values^2 + m)| = length; infinite where the rest is shorter already."""
    if np.linalg.norm(rest) <= length:
        return np.inf

    def longer(log: float) -> float:
        m = np.exp(log)
        return float(np.linalg.norm(rest * (m / (values**2 + m)))) - length

    return float(np.exp(-30.0 if longer(-30) > 0 else scipy.optimize.brentq(longer, -30, 30)))


def rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2)))


def psnr(difference: np.ndarray) -> float:
    """The peak signal-to-noise ratio in dB of two pictures in [0,1], from their difference; infinite if it is 0."""
    size = rms(difference)
    return float(-20 * np.log10(size)) if size else np.inf
