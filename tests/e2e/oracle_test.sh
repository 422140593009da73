#!/usr/bin/env bash
# oracle_test.sh BINARY SOURCE_DIR: oracle_checks.py by the oracles' Python. Exit code 77 where there is
# none, which ctest counts as skipped; in CI that is a failure.
set -euo pipefail

python=${ORRERY_ORACLE_PYTHON:-$2/.deps/oracles/bin/python}
if [[ ! -x $python ]]; then
  echo "$python is not there: ./orrery setup --tests installs the Python oracles"
  [[ -z ${CI:-} ]] && exit 77
  exit 1
fi
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
exec "$python" "$2/tests/e2e/oracle_checks.py" "$1" "$2"
