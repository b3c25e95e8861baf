"""Looped twins of `slide.ops.kernels.layers`."""


def take_pixels(pixels, places, out):
    for p in range(len(pixels)):
        out[p] = [pixels[p][c] for c in places]


def put_pixels(values, places, out):
    for p in range(len(out)):
        for c in range(len(out[p])):
            out[p][c] = values[p][list(places).index(c)] if c in places else 0


def put_planes(values, places, out):
    for b in range(len(out)):
        for c in range(len(out[b])):
            for p in range(len(out[b][c])):
                out[b][c][p] = values[b][p][list(places).index(c)] if c in places else 0
