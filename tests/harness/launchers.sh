# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# The launchers of this machine, for launchers_test.sh and layout_version_test.sh. To be sourced.

# For Open MPI: as root in containers, more ranks than cores, and machines without ssh.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_plm_rsh_agent=true
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe PRTE_MCA_plm_ssh_agent=true # of Open MPI 5

# find_launcher WORDS COMMAND...: the first of the commands whose --version contains the words.
find_launcher() {
    local words=$1 command
    shift
    for command in "$@"; do
        if command -v "$command" >/dev/null && "$command" --version 2>&1 | grep -q "$words"; then
            echo "$command"
            return
        fi
    done
}

# Whether the libodc of $ODC, the odc command, was built with PMIx.
has_pmix() { ! "${ODC:?the path of the odc command}" info 2>/dev/null | grep -qi "without PMIx"; }
