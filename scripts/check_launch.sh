#!/bin/bash
# Feeds written launch settings to the parsers of the programs themselves, as far as the package index has them: torchtitan 0.3.0
# builds each model without memory and counts it, DeepSpeed 0.19.8 reads its configuration for the run's ranks, megatron-core
# makes its TransformerConfig of the model. Needs some GB in FOLDER, and no accelerator.
#
#   scripts/check_launch.sh [FOLDER]        FOLDER/env is made once, by Python 3.11
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
