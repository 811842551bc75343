#!/usr/bin/env bash
# A release: build the source archive and the wheel, check both, and publish them where --upload is given.
# Use: scripts/release.sh [--out DIR] [--upload], with the dependency group `release`. Credentials are read by twine itself.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=dist upload=no
while [ $# -gt 0 ]; do
  case $1 in
    --out) out=$2; shift 2 ;;
    --upload) upload=yes; shift ;;
    *) echo "unknown option $1; expected --out DIR or --upload" >&2; exit 2 ;;
  esac
done

version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' jaxscale/__init__.py)
rm -f "$out"/jaxscale-*
python -m build --quiet --outdir "$out"
python -m twine check --strict "$out"/*
for file in "jaxscale-$version.tar.gz" "jaxscale-$version-py3-none-any.whl"; do
  [ -s "$out/$file" ] || { echo "$file was not built" >&2; exit 1; }
done
if [ "$upload" = yes ]; then
  [ -z "$(git status --porcelain)" ] || { echo "commit first: the release is built from a changed tree" >&2; exit 1; }
  git tag --points-at HEAD | grep -qx "v$version" || { echo "tag this commit v$version first" >&2; exit 1; }
  grep -q "^## \[$version\]" CHANGELOG.md || { echo "CHANGELOG.md has no section [$version]" >&2; exit 1; }
  python -m twine upload "$out"/*
fi
