# The broker as an image (target `broker`, the default), and the pipeline on Spark (target `pipeline`).
#
#   docker build -t wirelake .
#   docker build -t wirelake-pipeline --target pipeline .
#
# Both run as user 10001 on a root that may be read-only: what is kept goes to /data.
# BASE is Debian with nothing in it; any image of Debian 12 or newer does.

ARG BASE=docker.io/library/debian:bookworm-slim

# hadolint ignore=DL3006
FROM ${BASE} AS python
ENV LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# Debian keeps one version of each package in a release, and takes it away with the next fix.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates python3 \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt /var/log/apt /var/log/dpkg.log

# Compiles the kernels. Nothing of this stage is in the images but /opt/wirelake.
FROM python AS build
# hadolint ignore=DL3008,DL3009
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev python3-dev python3-venv
RUN python3 -m venv /opt/wirelake
WORKDIR /source
COPY LICENSE README.md MANIFEST.in CHANGELOG.md pyproject.toml setup.py package.json package-lock.json .npmrc ./
COPY src src
ENV WIRELAKE_BUILD=require WIRELAKE_CONSOLE=require WIRELAKE_CFLAGS="-O3 -g0" PIP_NO_CACHE_DIR=1
RUN /opt/wirelake/bin/pip install --disable-pip-version-check '.[sql,nats]'

FROM build AS build-pipeline
RUN /opt/wirelake/bin/pip install --disable-pip-version-check '.[spark,formats]'

FROM python AS pipeline
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt /var/log/apt /var/log/dpkg.log \
    && install -d -o 10001 -g 10001 -m 0700 /data
COPY --from=build-pipeline /opt/wirelake /opt/wirelake
ENV PATH=/opt/wirelake/bin:$PATH HOME=/tmp
USER 10001:10001
VOLUME /data
# There is no port to ask; a pipeline that fails ends, and is started again.
HEALTHCHECK NONE
ENTRYPOINT ["wirelake"]
CMD ["lake", "land", "--url", "http://broker:7780", "--table", "/data/lake"]

FROM python AS broker
RUN install -d -o 10001 -g 10001 -m 0700 /data
COPY --from=build /opt/wirelake /opt/wirelake
COPY deploy/container.toml /etc/wirelake/wirelake.toml
COPY deploy/healthy.py /opt/wirelake/healthy.py
ENV PATH=/opt/wirelake/bin:$PATH HOME=/tmp
USER 10001:10001
VOLUME /data
EXPOSE 7700 7780
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "/opt/wirelake/healthy.py"]
ENTRYPOINT ["wirelake"]
CMD ["serve", "--config", "/etc/wirelake/wirelake.toml"]
