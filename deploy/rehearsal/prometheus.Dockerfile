# Prometheus from Debian, for machines that cannot pull prom/prometheus. The base is one of Debian.
ARG BASE=debian:bookworm-slim
FROM ${BASE}
RUN apt-get update && apt-get install --yes --no-install-recommends prometheus wget && rm -rf /var/lib/apt/lists/* \
    && install --directory --owner=prometheus --group=prometheus /prometheus
USER prometheus
ENTRYPOINT ["prometheus"]
