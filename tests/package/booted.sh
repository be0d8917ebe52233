#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# What run.sh runs in a booted root, without a network: install, first lookup, upgrade under load, remove, purge. Packages are
# in /mnt/old and /mnt/new, the commands of README in /mnt/first.
set -euxo pipefail

since=$(date +%s%N)
step() { # NAME: the time since the last step
    local now
    now=$(date +%s%N)
    printf 'STEP %-58s %5d ms\n' "$1" $(((now - since) / 1000000))
    since=$(date +%s%N)
}
sudo() { # not in a bare root
    if [[ $1 == -u ]]; then runuser -u "$2" -- "${@:3}"; else "$@"; fi
}
not() { if "$@"; then return 1; fi; }
install_all() { apt-get install -y -q "$1"/*.deb; }

trap 'systemctl --no-pager status "hpsd*"; journalctl --no-pager -n 40 -u hpsd.service -u hpsd.socket' ERR
set -E

# ---- from nothing to a first lookup ------------------------------------------------------------------
[[ $(wc -l </mnt/first) == 4 ]]
cd /mnt/tree
# shellcheck disable=SC1091
. /mnt/first | tee /tmp/said
grep -q '^  1  found ' /tmp/said
step "four commands of README: installed, started, looked up"

# ---- the service -------------------------------------------------------------------------------------
systemctl is-enabled hpsd.service hpsd.socket hpsd-http.socket hpsd-admin.socket
systemctl is-active hpsd.service hpsd.socket hpsd-http.socket hpsd-admin.socket
not systemctl is-enabled hpsd-kserve.socket
not systemctl is-active hpsd-kserve.socket
systemd-analyze verify /lib/systemd/system/hpsd*.service /lib/systemd/system/hpsd*.socket
# Only loopback, and only systemd opens the ports.
ss -Hltn | awk '{print $4}' | sort >/tmp/open
diff /tmp/open <(printf '127.0.0.1:8601\n127.0.0.1:8602\n')
[[ $(stat -c %U:%a /var/lib/hpsd) == hpsd:750 && $(stat -c %U:%G:%a /etc/hpsd) == root:hpsd:750 ]]
[[ $(dpkg-query -Wf '${Conffiles}' hpsd) == *" /etc/hpsd/hpsd.json "* ]]
id hpsd
step "the service is enabled and active, on loopback only"

install_all /mnt/old
python3 -c 'import hpsd; print(hpsd.connect("127.0.0.1:8601", model="demo").lookup("feature_0", [1, 2]))'
man_pages=$(dpkg -L hpsd hpsd-tools | grep -c '/man/.*gz')
((man_pages == 5)) # minbase excludes the files themselves
bash -c '. /usr/share/bash-completion/completions/hpsctl; COMP_WORDS=(hpsctl lookup demo "") COMP_CWORD=3; _hpsctl_complete
    printf "%s\n" "${COMPREPLY[@]}"' | grep -x feature_0
[[ -e /usr/share/zsh/vendor-completions/_hpsctl ]]
# shellcheck disable=SC2046 # several words
cc -o /tmp/lookup /mnt/tree/docs/examples/c/lookup.c $(pkg-config --cflags --libs hpsd-client)
/tmp/lookup 127.0.0.1:8601 demo feature_0 1
[[ -e /usr/lib/triton/backends/hps/libtriton_hps.so && -e /usr/share/hpsd/proto/hps/v1/lookup.proto ]]
step "all packages: Python, C, completion, man pages"

# ---- upgrade under load ------------------------------------------------------------------------------
sed -i 's/"models": \[\]/"models": []  /' /etc/hpsd/hpsd.json # changed by the operator
bench() { # NAME ARGUMENTS...: in the background; it ends with SIGINT
    hps-bench --model demo --tables feature_0 --rows 1000 --verify --retry --duration 600 --rate 300 --connections 2 --timeout 60 \
        --output json --quiet "${@:2}" >"/tmp/$1.json" &
    benches+=($!)
}
ended() { # end them; each must have had no failed call and no wrong row
    local pid
    kill -INT "${benches[@]}"
    for pid in "${benches[@]}"; do wait "$pid" || [[ $? == 130 ]]; done
    benches=()
}
benches=()
mkdir /var/lib/hpsd2
sed 's/8601/8611/; s/8602/8612/; s,/run/hpsd/admin,/var/lib/hpsd2/admin,; s,/var/lib/hpsd",/var/lib/hpsd2",' /etc/hpsd/hpsd.json \
    >/var/lib/hpsd2/hpsd.json
cp -a /var/lib/hpsd/models /var/lib/hpsd2/
chown -R hpsd:hpsd /var/lib/hpsd2
systemd-run --unit=hpsd2 -p Type=notify -p User=hpsd -p NotifyAccess=main /usr/sbin/hpsd --config /var/lib/hpsd2/hpsd.json
hpsctl --addr unix:/var/lib/hpsd2/admin.sock load demo --from /var/lib/hpsd2/models/demo --activate
bench one --addr 127.0.0.1:8601
bench two --addr 127.0.0.1:8601,127.0.0.1:8611
sleep 2
pid=$(systemctl show -P MainPID hpsd.service)
since=$(date +%s%N)
install_all /mnt/new
step "apt install of the next version under load"
at() { systemctl show -P "$1TimestampMonotonic" hpsd.service; }
printf 'NOTE hpsd of apt: stopped within %d ms, started again within %d ms\n' \
    $((($(at InactiveEnter) - $(at ActiveExit)) / 1000)) $((($(at ActiveEnter) - $(at InactiveEnter)) / 1000))
[[ $(systemctl show -P MainPID hpsd.service) != "$pid" ]] # restarted by the package
[[ $(hpsd --version) == "hpsd $(dpkg-query -Wf '${Version}' hpsd | sed 's/-.*//') "* ]]
until hpsctl ping; do sleep 0.1; done
systemctl stop hpsd2.service
systemd-run --unit=hpsd2-new -p Type=notify -p User=hpsd -p NotifyAccess=main /usr/sbin/hpsd --config /var/lib/hpsd2/hpsd.json
until hpsctl --addr unix:/var/lib/hpsd2/admin.sock ping; do sleep 0.1; done
sleep 2
ended
for name in one two; do
    python3 -c '
import json, sys
said = json.load(open(f"/tmp/{sys.argv[1]}.json"))
print("NOTE hps-bench {}: {} calls, {} rows checked, longest call {:.2f} s".format(
    sys.argv[1], said["requests"], said["rows_checked"], said["latency_us"]["max"] / 1e6))
assert said["errors"] == {} and said["rows_wrong"] == said["unknown_keys"] == 0 < said["rows_checked"], said' $name
done
# The store of 0.2.0 is open, with the version that 0.2.0 loaded.
hpsctl lookup demo feature_0 1 | grep -q '^  1  found '
grep -q '"models": \[\]  ' /etc/hpsd/hpsd.json
step "two daemons and one by socket activation: no failed call"

# ---- remove, purge -----------------------------------------------------------------------------------
systemctl stop hpsd2-new.service
systemctl stop hpsd.service
systemctl start hpsd-kserve.socket hpsd.service # by the operator
# Connections during the removal do not start the service again.
(set +x; while [[ ! -e /tmp/removed ]]; do { : <>/dev/tcp/127.0.0.1/8601; } 2>/dev/null || true; done) &
apt-get remove -y -q hpsd
touch /tmp/removed
[[ -e /var/lib/hpsd/models && -e /etc/hpsd/hpsd.json && ! -e /usr/sbin/hpsd ]]
not systemctl is-active hpsd.service hpsd.socket hpsd-http.socket hpsd-admin.socket hpsd-kserve.socket
step "removed: the state and the configuration stay"
mkdir /var/lib/hpsd/models/mounted # in an empty folder: nothing can remove files below a mount
mount -t tmpfs tmpfs /var/lib/hpsd/models/mounted
touch /var/lib/hpsd/models/mounted/theirs
apt-get purge -y -q hpsd
[[ $(find /var/lib/hpsd -type f) == /var/lib/hpsd/models/mounted/theirs ]]
umount /var/lib/hpsd/models/mounted
rmdir /var/lib/hpsd/models/mounted /var/lib/hpsd/models /var/lib/hpsd
[[ ! -e /var/lib/hpsd && ! -e /etc/hpsd && ! -e /run/hpsd && ! -e /var/log/hpsd ]]
[[ -z $(find /etc/systemd /var/lib/systemd -name '*hpsd*' -not -path '*hpsd2*' -not -name 'hpsd-test*') ]]
step "purged: nothing is left"
