# Two stages: a static binary, then nothing but that binary and what it needs to run.
#
#   docker build --build-arg VERSION=$(git describe --tags --always) -t lanegate .
#
# Commands of exec classes run inside this image and find no shell in it. Give RUN_IMAGE
# a base that has what your commands need, or run them elsewhere (http or agent classes).
ARG BUILD_IMAGE=golang:1.26-bookworm
ARG RUN_IMAGE=gcr.io/distroless/static-debian12:nonroot

FROM ${BUILD_IMAGE} AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=0.0.0-dev
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /out/lanegate ./cmd/lanegate \
	&& mkdir /out/data

FROM ${RUN_IMAGE}
COPY --from=build /out/lanegate /lanegate
# A new volume takes the owner of the folder it is mounted on.
COPY --from=build --chown=65532:65532 /out/data /data
USER 65532:65532
VOLUME /data
# Loopback inside a container reaches nobody, so it listens everywhere; on such an address
# the gateway refuses to start until tokens are configured.
ENV LANEGATE_DATABASE=/data/lanegate.db \
	LANEGATE_LISTEN=0.0.0.0:8080
EXPOSE 8080
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s CMD ["/lanegate", "health"]
ENTRYPOINT ["/lanegate"]
CMD ["serve"]
