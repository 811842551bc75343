#!/usr/bin/env bash
# Tests of what reads JAX's programs under other versions of JAX, each in an environment of its own.
#
#   scripts/jax_versions.sh 0.9 0.10 [-- TESTS...]
#
# Names of primitives and the text of compiled programs change between minor versions. Environments are kept in
# .jax_versions/, so that a second call installs nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

versions=() tests=(tests/tracing tests/compiled tests/costs/test_class_collectives.py tests/costs/test_kernel_time.py)
while [ $# -gt 0 ]; do
    if [ "$1" = -- ]; then
        shift
        tests=("$@")
        break
    fi
    versions+=("$1")
    shift
done
[ ${#versions[@]} -gt 0 ] || { echo "usage: scripts/jax_versions.sh VERSION... [-- TESTS...]" >&2; exit 2; }

python=${PYTHON:-$(command -v python3.11 || command -v python3)}
failed=()
for version in "${versions[@]}"; do
    folder=.jax_versions/$version
    if [ ! -e "$folder/installed" ]; then
        "$python" -m venv "$folder"
        # Pins of the constraints, but for those of jax and of what follows its versions.
        grep -vE '^(jax|jaxlib|equinox|optimistix|lineax|optax|numpy|scipy|ml_dtypes)[><=]' constraints.txt > "$folder/constraints.txt"
        pip=("$folder/bin/pip" install --quiet --disable-pip-version-check -c "$folder/constraints.txt")
        "${pip[@]}" "pip>=25.1" # the first that reads dependency groups
        "${pip[@]}" "jax==$version.*" "jaxlib==$version.*" -e . --group checks
        touch "$folder/installed"
    fi
    echo "== jax $("$folder/bin/python" -c 'import jax; print(jax.__version__)')"
    "$folder/bin/python" -m pytest -q -n 0 -p no:cacheprovider "${tests[@]}" || failed+=("$version")
done
[ ${#failed[@]} -eq 0 ] || { echo "failed under jax ${failed[*]}" >&2; exit 1; }
