# One image for both ends: a SuperLink with the ServerApp's packages, or a SuperNode.
#
#   docker build -t flwr-splitmix .                                      # vision
#   docker build -t flwr-splitmix --build-arg EXTRAS=vision,language .   # and language models
#   docker run flwr-splitmix flower-superlink --help                     # the server
#   docker run flwr-splitmix flower-supernode --help                     # a node
#
# docs/deployment.md says what either needs: certificates, keys, and the port of the stream.
FROM python:3.11-slim-bookworm AS build

# PyTorch for CPUs is a tenth of the size; for GPUs leave the index out: --build-arg TORCH_INDEX=
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG EXTRAS=vision
WORKDIR /source
RUN python -m venv /opt/splitmix
ENV PATH=/opt/splitmix/bin:$PATH
# The ranges are those of pyproject.toml; who must repeat a build gives pip's constraints.
# hadolint ignore=DL3013
RUN pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "torch>=2.6" "torchvision>=0.21"
COPY pyproject.toml setup.py README.md LICENSE ./
COPY flwr_splitmix ./flwr_splitmix
# What `splitmix new` writes; the package's templates are links to it.
COPY apps ./apps
COPY examples ./examples
# hadolint ignore=DL3013
RUN pip install --no-cache-dir ".[${EXTRAS}]"

FROM python:3.11-slim-bookworm

# Threads that wait take no processor from other nodes on the machine.
ENV PATH=/opt/splitmix/bin:$PATH \
    FLWR_HOME=/var/lib/splitmix/flwr \
    SPLITMIX_HOME=/var/lib/splitmix \
    OMP_NUM_THREADS=1
RUN useradd --uid 1000 --create-home splitmix \
 && mkdir --parents /var/lib/splitmix/flwr \
 && chown --recursive splitmix /var/lib/splitmix
COPY --from=build /opt/splitmix /opt/splitmix
USER 1000
WORKDIR /home/splitmix
# Runs at the server, a node's ledger and its clients' states: what must outlive the container.
VOLUME /var/lib/splitmix
CMD ["splitmix", "--help"]
