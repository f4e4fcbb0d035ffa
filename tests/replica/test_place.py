"""A replica may not lie on a network file system; the kernel's list of mounts shows that."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from millpond.replica.folder import file_system, kind_in
from spark_files.golden import GOLDEN

# Lines as Linux writes them; a blank in a folder's name is an octal number.
MOUNTS = r"""/dev/sda1 / ext4 rw,relatime 0 0
proc /proc proc rw,nosuid,nodev,noexec,relatime 0 0
filer:/home /home nfs4 rw,relatime,vers=4.2,rsize=1048576,proto=tcp,addr=10.0.0.2 0 0
/dev/sdb1 /home/local ext4 rw,relatime 0 0
//server/share /mnt/my\040share cifs rw,vers=3.1.1,addr=10.0.0.3 0 0
me@host:/ /mnt/tab\011and\134back fuse.sshfs rw,nosuid,nodev,user_id=1000 0 0
tmpfs /mnt/over tmpfs rw 0 0
filer:/x /mnt/over nfs rw,vers=3 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib", "ext4"),
        ("/home", "nfs4"),
        ("/home/me/.cache/millpond", "nfs4"),
        ("/homes/me", "ext4"),
        ("/home/local/replica", "ext4"),
        ("/mnt/my share/replica", "cifs"),
        ("/mnt/tab\tand\\back/x", "fuse.sshfs"),
        ("/mnt/over/x", "nfs"),  # of two mounts on one folder, the later one is visible
    ],
)
def test_the_innermost_mount_tells_the_kind(path: str, kind: str) -> None:
    assert kind_in(MOUNTS, path) == kind


def test_this_machines_own_mounts_are_read(tmp_path: Path) -> None:
    if not Path("/proc/self/mounts").exists():
        pytest.skip("no /proc here")
    assert file_system(Path("/proc/self")) == "proc"
    assert file_system(tmp_path) not in ("", "proc")


@pytest.mark.parametrize("kind", ["nfs4", pytest.param("fuse.sshfs", marks=pytest.mark.long)])
def test_a_replica_on_a_network_file_system_is_refused(tmp_path: Path, kind: str) -> None:
    """A file mounted over the kernel's list gives this process and its children one more line."""
    unshare = shutil.which("unshare")
    able = unshare and subprocess.run([unshare, "-m", "mount", "-t", "tmpfs", "x", str(tmp_path)], capture_output=True, check=False)
    if not able or able.returncode != 0:
        pytest.skip("only who may mount can do this")
    home, mounts = tmp_path / "home", tmp_path / "mounts"
    home.mkdir()
    mounts.write_text(f"{Path('/proc/self/mounts').read_text()}filer:/export {home} {kind} rw,relatime 0 0\n")
    checkpoint = GOLDEN / "counts-hdfs" / "checkpoint"
    command = [sys.executable, "-m", "millpond.cli", "tables", str(checkpoint), "--replica-dir", str(home)]
    script = 'mount --bind "$0" /proc/$$/mounts && exec "$@"'
    done = subprocess.run(["unshare", "-m", "sh", "-c", script, str(mounts), *command], capture_output=True, text=True, check=False)
    assert done.returncode == 6, done.stderr
    assert f"[NETWORK_FILE_SYSTEM] {home}" in done.stderr
    assert f"({kind})" in done.stderr
    assert not list(home.rglob("generation-*"))
