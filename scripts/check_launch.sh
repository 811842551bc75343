#!/bin/bash
# Feeds written launch settings to the parsers of the programs themselves, as far as the package index has them: torchtitan 0.3.0
# builds each model without memory and counts it, DeepSpeed 0.19.8 reads its configuration for the run's ranks, megatron-core
# makes its TransformerConfig of the model, MaxText 0.2.5 (where there is a Python 3.12) its own. Needs some GB in FOLDER, and
# no accelerator.
#
#   scripts/check_launch.sh [FOLDER]        FOLDER/env and FOLDER/env312 are made once; PYTHON312 names the second Python
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:-$(mktemp -d)}
mkdir -p "$folder"
if [ ! -x "$folder/env/bin/python" ]; then
  python3 -m venv "$folder/env"
  "$folder/env/bin/pip" install -q torch triton numpy pyyaml torchtitan==0.3.0 deepspeed==0.19.8
  "$folder/env/bin/pip" install -q --no-deps megatron-core==0.16.1
fi
PYTHONPATH=$root "${PYTHON:-python3}" "$root/scripts/check_launch.py" write "$folder/settings"
"$folder/env/bin/python" "$root/scripts/check_launch.py" check "$folder/settings"
python312=${PYTHON312:-python3.12}
if [ ! -x "$folder/env312/bin/python" ] && "$python312" --version > /dev/null 2>&1; then
  "$python312" -m venv "$folder/env312"
  "$folder/env312/bin/pip" install -q --no-deps maxtext==0.2.5
  "$folder/env312/bin/pip" install -q jax flax omegaconf pydantic pyyaml absl-py packaging numpy
fi
if [ -x "$folder/env312/bin/python" ]; then
  "$folder/env312/bin/python" "$root/scripts/check_launch.py" check "$folder/settings" maxtext
fi
