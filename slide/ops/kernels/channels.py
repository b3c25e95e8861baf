"""Copies of some channels out of images, and back.

P is the number of pixels, C the number of channels, and A the number of used channels, whose
positions are ``places`` ``(A,)`` int64, distinct.
"""

from slide.ops.kernels.compile import parallel, prange


@parallel
def take_pixels(pixels, places, out):
    """Write the used channels of ``pixels`` ``(P, C)`` to ``out`` ``(P, A)``."""
    for p in prange(len(out)):
        for a in range(len(places)):
            out[p, a] = pixels[p, places[a]]


@parallel
def put_pixels(values, places, out):
    """Write ``values`` ``(P, A)`` to the used channels of ``out`` ``(P, C)``, zeros elsewhere."""
    for p in prange(len(out)):
        for c in range(out.shape[1]):
            out[p, c] = 0
        for a in range(len(places)):
            out[p, places[a]] = values[p, a]


@parallel
def put_planes(values, places, out):
    """Write ``values`` ``(B, P, A)`` to the used planes of ``out`` ``(B, C, P)``, else zeros."""
    for b in prange(len(out)):
        planes, pixels = out[b], values[b]
        planes[:] = 0
        for a in range(len(places)):
            plane = planes[places[a]]
            for p in range(len(plane)):
                plane[p] = pixels[p, a]
