#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The shell snippets and command lines of docs/launching.md, docs/rendezvous.md and docs/c.md run as they are printed, but for what
# each check here says; those that cannot run on one machine are named with the reason.
set -u
: "${ODC_SOURCE_DIR:?the folder of the sources}" "${ODC_BUILD_DIR:?the folder of the build}" "${ODC:?the odc command}"
# shellcheck source=tests/harness/shell_checks.sh
. "$(dirname "$0")/../harness/shell_checks.sh"
docs=$ODC_SOURCE_DIR/docs

# block LANGUAGE PAGE: the page's blocks of that language.
block() {
    awk -v fence="\`\`\`$1" '$0 == fence {inside = 1; next} /^```$/ {inside = 0} inside' "$docs/$2"
}

# The names that pages use: python and odc on the PATH, a program of the reader's, and for Open MPI what launchers_test.sh sets.
mkdir "$work/bin" "$work/job"
ln -s "$ODC" "$work/bin/odc"
# The Python bindings' environment has torch; the system's seldom has.
python=$ODC_SOURCE_DIR/build/python/bin/python
[ -x "$python" ] || python=$(command -v python3)
printf '#!/bin/sh\nexec "%s" "$@"\n' "$python" >"$work/bin/python"
chmod +x "$work/bin/python"
PATH=$work/bin:$PATH
export ODC_TIMEOUT_MS=30000 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
cat >"$work/job/train.py" <<'PYTHON'
import os
ranks = [os.environ[name] for name in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK") if name in os.environ]
print(f"this is rank {ranks[0]};", flush=True)
PYTHON
cd "$work/job" || exit 1

# ---- docs/launching.md ----
# starts_all RANKS COMMAND...: each rank ran train.py once.
starts_all() {
    local ranks=$1 rank
    shift
    expect 0 "$@"
    for ((rank = 0; rank < ranks; rank++)); do
        # Ranks' lines may be joined.
        same "$(printf '%s\n' "$out" | grep -o "this is rank $rank;" | wc -l)" 1
    done
}
commands=0
while read -r command <&3; do
    commands=$((commands + 1))
    read -ra words <<<"$command"
    case $command in
    *--hosts*)
        # Names on this machine instead of hosts that ssh reaches.
        words=("${words[@]:0:6}" --via 'env ODC_HOST_ID={host}' --address 127.0.0.1 "${words[@]:6}")
        starts_all 16 "${words[@]}" ;;
    *"--host "* | *--nnodes* | *"srun -N"*) echo "$command: not run, it needs a second host" ;;
    torchrun*)
        if python -c 'import torch.distributed.run' 2>/dev/null; then
            # like --standalone: a free port
            starts_all 8 env PET_STANDALONE=1 python -m torch.distributed.run "${words[@]:1}"
        else
            echo "$command: not run, $python cannot import torch"
        fi ;;
    *)
        if command -v "${words[0]}" >/dev/null; then
            starts_all 8 "${words[@]}"
        else
            echo "$command: not run, there is no ${words[0]} here"
        fi ;;
    esac
done 3< <(sed -n '/^| launcher/,/^$/p' "$docs/launching.md" | grep -oE '`(odc run|torchrun|mpirun|mpiexec|srun) [^`]*train\.py`' | tr -d '`')
same "$commands" 9

# On one machine: rank 0 is on 127.0.0.1, at a port that odc run holds for torch.
mkdir "$work/home"
echo "a text that nobody guesses" >"$work/home/odc-secret"
block sh launching.md | sed "s/=a:29600/=127.0.0.1:\$MASTER_PORT/" >"$work/environment"
cat >"$work/rank" <<RANK
. "$work/environment"
unset ODC_JOB
exec "$ODC_BUILD_DIR/tests/cli/join"
RANK
expect 0 env HOME="$work/home" odc run -n 3 -- sh "$work/rank"
for rank in 0 1 2; do
    contains "$out" "[$rank] rank $rank of 3: sum 3"
done
rm "$work/home/odc-secret"
expect 1 env HOME="$work/home" odc run -n 3 -- sh "$work/rank"
contains "$err" "ODC_SECRET"

block python launching.md >"$work/variables.py"
echo 'print(*(os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")))' >>"$work/variables.py"
expect 0 env OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=1 python "$work/variables.py"
same "$out" "5 8 1 127.0.0.1"
expect 0 env SLURM_PROCID=6 SLURM_NTASKS=8 SLURM_LOCALID=2 python "$work/variables.py"
same "$out" "6 8 2 127.0.0.1"

# ---- docs/rendezvous.md ----
if odc info | grep -q "fabric *ready"; then
    block sh rendezvous.md >"$work/snippet"
    expect 0 sh -eu "$work/snippet"
    contains "$out" "[0] "
    contains "$out" "fabric"
else
    echo "docs/rendezvous.md: not run, $(odc info | grep fabric)"
fi
if command -v mpicc >/dev/null; then
    { echo '#include <mpi.h>' && block c rendezvous.md && echo 'int main(void) { (void)mpi_all_gather; return 0; }'; } >"$work/mpi.c"
    expect 0 mpicc -std=c99 -Wall -Wextra -Werror "$work/mpi.c" -o "$work/mpi"
else
    echo "docs/rendezvous.md: its callback is not compiled, there is no mpicc"
fi

# ---- docs/c.md ----
# Into a prefix, as its comment has it, instead of the machine; nothing runs as another user.
prefix=$work/prefix
cat >"$work/bin/sudo" <<SUDO
#!/bin/sh
case \$1 in ldconfig) ;; *) exec "\$@" --prefix "$prefix" ;; esac
SUDO
chmod +x "$work/bin/sudo"
mkdir build
ln -s "$ODC_BUILD_DIR" build/release
awk '/^```c$/ {inside = 1; next} /^```$/ {if (inside) exit} inside' "$docs/c.md" >example.c
block sh c.md >"$work/snippet"
same "$(grep -c . "$work/snippet")" 2
expect 0 sh -eu -c "$(sed -n 1p "$work/snippet")"
libdir=$(dirname "$(find "$prefix" -name libodc.so)")
expect 0 env PKG_CONFIG_PATH="$libdir/pkgconfig" LD_LIBRARY_PATH="$libdir" sh -eu -c "$(sed -n 2p "$work/snippet")"
contains "$out" "rank 3 ends at"

[ "$failures" -eq 0 ]
