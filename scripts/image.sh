#!/bin/sh
# Builds or checks the container image with buildah, which needs no daemon.
#
#   scripts/image.sh build VERSION   the whole Dockerfile; fetches BUILD_IMAGE and RUN_IMAGE
#   scripts/image.sh check VERSION   bin/lanegate in place of the build stage, on an empty base:
#                                    needs no image registry; then the image is started
set -eu
cd "$(dirname "$0")/.."

command -v buildah >/dev/null || {
	echo "image: buildah is missing; install it first: apt-get install -y buildah" >&2
	exit 1
}
version=$2
image=lanegate:$version
export BUILDAH_ISOLATION=chroot STORAGE_DRIVER="${STORAGE_DRIVER:-vfs}"

case $1 in
build)
	buildah bud --format docker --build-arg "VERSION=$version" \
		${BUILD_IMAGE:+--build-arg "BUILD_IMAGE=$BUILD_IMAGE"} ${RUN_IMAGE:+--build-arg "RUN_IMAGE=$RUN_IMAGE"} \
		-t "$image" .
	;;
check)
	stage=$(mktemp -d)
	container=
	clean() {
		[ -z "$container" ] || buildah rm "$container" >/dev/null
		rm -rf "$stage"
	}
	trap clean EXIT
	mkdir -p "$stage/out/data"
	cp bin/lanegate "$stage/out/lanegate"

	buildah bud --quiet --format docker --build-arg RUN_IMAGE=scratch --build-arg "VERSION=$version" \
		--build-context "build=$stage" -t "$image" . >/dev/null
	buildah inspect --type image --format '{{.Docker.Config.User}} {{.Docker.Config.Healthcheck.Test}}' "$image" >"$stage/config"
	grep -q '^65532:65532 .*CMD /lanegate health' "$stage/config" || {
		echo "image: user or health check is not in the image: $(cat "$stage/config")" >&2
		exit 1
	}
	container=$(buildah from "$image")
	got=$(buildah run "$container" -- /lanegate version)
	case $got in
	*"$version"*) echo "image: $image starts as 65532 and says: $got" ;;
	*)
		echo "image: lanegate version says '$got', want $version in it" >&2
		exit 1
		;;
	esac
	# Without tokens it must not serve on every address, which is what the image asks for.
	if timeout 20 buildah run "$container" -- /lanegate serve >"$stage/serve" 2>&1; then
		echo "image: lanegate serves on every address without tokens" >&2
		exit 1
	elif ! grep -qi token "$stage/serve"; then
		echo "image: lanegate serve failed for another reason than missing tokens: $(tail -n 3 "$stage/serve")" >&2
		exit 1
	fi
	# Port 1 is nobody's.
	if buildah run --env LANEGATE_LISTEN=127.0.0.1:1 "$container" -- /lanegate health >/dev/null 2>&1; then
		echo "image: lanegate health succeeds although nothing is served" >&2
		exit 1
	fi
	echo "image: it refuses to serve without tokens, and its health check fails when nothing is served"
	;;
*)
	echo "usage: scripts/image.sh build|check VERSION" >&2
	exit 2
	;;
esac
