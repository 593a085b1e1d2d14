#!/usr/bin/env bash
# Build wheel and sdist and check them as an index does. Then run the README's block with each, with the lowest and the
# newest Flower, in environments of their own and outside of the clone. PYTHON= says which Python.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
rm -rf dist
"$python" -m venv "$place/tools"
"$place/tools/bin/python" -m pip install --quiet build twine
"$place/tools/bin/python" -m build --outdir dist > "$place/build.log" || { cat "$place/build.log"; exit 1; }
"$place/tools/bin/python" -m twine check --strict dist/*
ls -l dist
awk '/^```python$/ { on = 1; next } /^```$/ { on = 0 } on' README.md > "$place/block.py"
for file in dist/*; do
  for flower in 'flwr==1.22.0' flwr; do
    "$python" -m venv --clear "$place/env"
    "$place/env/bin/python" -m pip install --quiet "$file" "$flower"
    version=$("$place/env/bin/python" -c 'import importlib.metadata as m; print(m.version("flwr"))')
    # Of its own: a block that fails inside of `echo` would not end the script.
    said=$(cd "$place" && env -u PYTHONPATH env/bin/python block.py | tail -n 1)
    echo "== $file with flwr $version: $said"
  done
done
