# Training:  docker build -t slide . && docker run --rm -v "$PWD/runs:/runs" slide dataset=synthetic
# Serving:   docker run --rm -p 8000:8000 -v "$PWD/runs:/runs" --entrypoint slide-serve slide \
#                my/model --host 0.0.0.0 --port 8000
# Clients that call the server by a name need --allow-host NAME.
# Data sets, caches and runs are in /runs. A container with the user's own number needs no root:
# add -u "$(id -u):$(id -g)".
FROM python:3.12-slim AS build
WORKDIR /src
COPY requirements.txt ./
RUN python -m venv /opt/slide && /opt/slide/bin/pip install --no-cache-dir --require-hashes -r requirements.txt
COPY pyproject.toml setup.py MANIFEST.in README.md LICENSE ./
COPY conf conf
COPY slide slide
RUN /opt/slide/bin/pip install --no-cache-dir --no-deps .

FROM python:3.12-slim
# OpenMP, which numba's parallel kernels need.
RUN apt-get update && apt-get install -y --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/slide /opt/slide
ENV PATH=/opt/slide/bin:$PATH NUMBA_CACHE_DIR=/tmp/numba MPLCONFIGDIR=/tmp/matplotlib \
    PYTHONUNBUFFERED=1
WORKDIR /runs
ENTRYPOINT ["slide-train"]
