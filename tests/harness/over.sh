#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# over.sh PROVIDER COMMAND...: runs it with ODC_PROVIDER; skips it (77) with the reason where libfabric lacks that provider for
# ODC_INTERFACE. ODC is the odc command.
set -u

export ODC_PROVIDER=${1:?the provider}
shift
if ! "${ODC:?the odc command}" topo | grep -qF "fabric: $ODC_PROVIDER from $ODC_INTERFACE "; then
    echo "skipped: libfabric has no provider $ODC_PROVIDER for $ODC_INTERFACE here"
    exit 77
fi
exec "$@"
