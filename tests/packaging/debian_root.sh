# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# A fresh Debian in a folder, for packages_root.sh, debian.sh and bare_root.sh. To be sourced.

# mirror_of SUITE: this machine's apt source of that release, or nothing: debootstrap has a default.
mirror_of() {
    # shellcheck disable=SC2016 # apt-get's
    apt-get indextargets --format '$(REPO_URI)' "Codename: $1" 'Created-By: Packages' | head -n 1
}

# sources_of ORIGIN: this machine's apt sources of Debian, or Ubuntu, with updates, as lines of sources.list.
sources_of() {
    # shellcheck disable=SC2016 # apt-get's
    apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' "Origin: $1" 'Created-By: Packages' | sort -u
}

# make_debian_root ROOT SUITE MIRROR OPTION...: debootstrap's minimal system, with its options, and this machine's /proc, /sys,
# /dev and name servers. The caller runs in its own mount and PID namespaces, with which the mounts end.
make_debian_root() {
    local root=$1 suite=$2 mirror=$3
    shift 3
    debootstrap --variant=minbase "$@" "$suite" "$root" ${mirror:+"$mirror"} || return
    cp /etc/resolv.conf "$root/etc/" || return
    echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/unsafe-io" || return # it is temporary
    # debootstrap may have mounted them.
    mountpoint -q "$root/proc" || mount -t proc proc "$root/proc" || return
    ! mountpoint -q "$root/sys" || umount "$root/sys" || return
    mount --rbind /sys "$root/sys" || return
    mountpoint -q "$root/dev" || mount --rbind /dev "$root/dev"
}
