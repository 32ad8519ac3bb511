"""podman, buildah and the real docker compose, in namespaces of their own, out of the cache.

    with Engine(directory) as engine:
        engine.buildah("build", "-t", "x", ".", host_network=True)
        engine.podman("run", "--rm", "x")
        engine.docker("compose", "up", "-d")

Law: nothing of the machine is changed, and nothing outlives the process that made it. Programs are
Debian's packages, unpacked; storage, settings, mounts, process ids and networks are this engine's
alone, so bridges and firewall rules of a compose network are nowhere else, and when the engine's
first process ends the kernel ends all containers. In there is no way out to the network: what must
download (a build) runs with the machine's own. It needs root, and Linux' overlay file system.

Where there is no systemd nobody runs a container's health checks: `Engine` does, each second.
"""

import json
import os
import resource
import shlex
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

from lab import apt
from lab.cache import Unavailable, cache_folder, kept, locked, say
from lab.child import ServerFailedError, end, spawn, wait_ready

COMMAND_SECONDS = 300
BUILD_SECONDS = 1200
HEALTH_SECONDS = 1.0

# The programs, and of the libraries those that not every Debian has; libc is the machine's.
_PACKAGES = [
    "podman",
    "buildah",
    "crun",
    "conmon",
    "catatonit",
    "netavark",
    "aardvark-dns",
    "golang-github-containers-common",
    "iptables",
    "mmdebstrap",
    "libgpgme11",
    "libassuan0",
    "libgpg-error0",
    "libsubid4",
    "libdevmapper1.02.1",
    "libseccomp2",
    "libyajl2",
    "libcap2",
    "libsystemd0",
    "libglib2.0-0",
    "libpcre2-8-0",
    "libip4tc2",
    "libip6tc2",
    "libxtables12",
    "libmnl0",
    "libnftnl11",
    "libnetfilter-conntrack3",
    "libnfnetlink0",
]


def tools() -> Path:
    """The tree with podman, buildah and mmdebstrap, Debian bookworm's."""

    def make(into: Path) -> str:
        say("getting podman and buildah (Debian bookworm's packages, 30 MB), 10 to 30 s")
        apt.unpack("podman", "bookworm", _PACKAGES, into / "root", deep=False)
        (into / "bin").mkdir()
        _, triplet = apt.architecture()
        root = Path("../root")
        for name in ("iptables", "iptables-save", "iptables-restore", "ip6tables"):
            (into / "bin" / name).symlink_to(root / "usr/sbin/xtables-nft-multi")
        for name in ("podman", "buildah", "crun", "conmon", "catatonit"):
            (into / "bin" / name).symlink_to(root / "usr/bin" / name)
        return triplet

    return kept("containers", make)


def compose() -> Path:
    """The tree with docker's command and docker compose, Debian sid's."""

    def make(into: Path) -> str:
        say("getting docker compose (Debian sid's packages, 30 MB), 10 to 30 s")
        apt.unpack("docker compose", "sid", ["docker-cli", "docker-compose"], into, deep=False)
        return "sid"

    return kept("docker", make)


_SPACES = (
    *("--mount", "--propagation=private", "--net", "--ipc"),
    *("--pid", "--fork", "--kill-child=KILL", "--mount-proc"),
)


class CommandFailedError(Exception):
    """A command in the engine ended with another status than 0; the message has its output."""


class Engine:
    """podman and buildah over `directory`; images are kept in the cache, containers are not.

    There is one at a time: a second one waits until the first one is down. `up` (or `with`) raises
    Unavailable if this machine cannot run it.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = cache_folder() / "images"
        self._process: subprocess.Popen[bytes] | None = None
        self._alone = ExitStack()
        self._ended = threading.Event()
        self._health = threading.Thread(target=self._look_after, name="health", daemon=True)

    def __enter__(self) -> Self:
        try:
            self.up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def up(self) -> None:
        """Make the namespaces, and podman's socket for docker compose."""
        if os.geteuid() != 0:
            raise Unavailable("containers", "this is not root", "run it as root")
        for name in ("unshare", "nsenter", "ip", "ldconfig", "mount"):
            if _found(name) is None:
                raise Unavailable("containers", f"there is no {name} here", f"install {name}")
        # podman's own records lie beside the images: what one engine removes all would lose
        self._alone.enter_context(locked("engine"))
        self.directory.mkdir(parents=True, exist_ok=True)
        self.store.mkdir(parents=True, exist_ok=True)
        self._settings()
        log, ready = self.directory / "engine.log", self.directory / "ready"
        ready.unlink(missing_ok=True)
        self._process = spawn(
            ["unshare", *_SPACES, "/bin/sh", "-c", self._first_steps()],
            log,
        )
        try:
            wait_ready(self._process, ready.exists, log, what="the containers' namespaces")
        except ServerFailedError as error:
            reason = " ".join(str(error).split())
            raise Unavailable("containers", reason, "a machine where root is free") from None
        self._serve()
        self._clear()  # what an engine has left that was killed
        self._health.start()

    def down(self) -> None:
        """End all containers and the namespaces; what they wrote goes with them."""
        self._ended.set()
        if self._health.is_alive():
            self._health.join(COMMAND_SECONDS)
        if self._process is not None:
            with suppress(CommandFailedError, subprocess.TimeoutExpired, OSError):
                self._clear()
            end(self._process)
            self._process = None
        shutil.rmtree(self.directory / "run", ignore_errors=True)
        self._alone.close()

    def podman(self, *arguments: str, seconds: float = COMMAND_SECONDS) -> str:
        """Run podman; returns what it prints, raises CommandFailedError with it and stderr."""
        return self.run("podman", *arguments, seconds=seconds)

    def buildah(
        self, *arguments: str, host_network: bool = False, seconds: float = BUILD_SECONDS
    ) -> str:
        """Run buildah, for what downloads with the machine's network."""
        return self.run("buildah", *arguments, host_network=host_network, seconds=seconds)

    def docker(
        self,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        seconds: float = COMMAND_SECONDS,
    ) -> str:
        """Run docker's own command, with docker compose, over podman's socket."""
        added = {"DOCKER_HOST": f"unix://{self._socket}", **(environment or {})}
        program = str(compose() / "usr/bin/docker")
        return self.run(program, *arguments, environment=added, seconds=seconds)

    def run(
        self,
        *argv: str,
        environment: Mapping[str, str] | None = None,
        host_network: bool = False,
        seconds: float = COMMAND_SECONDS,
    ) -> str:
        """Run a program in the namespaces; the machine's network only where it is asked for."""
        done = subprocess.run(
            [*self._enter(host_network=host_network), *argv],
            env={**self._environment(), **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        if done.returncode != 0:
            raise CommandFailedError(
                f"`{shlex.join(argv)}` ends with {done.returncode}\n{done.stdout}\n{done.stderr}"
            )
        return done.stdout

    def inspect(self, container: str) -> dict[str, Any]:
        """What podman knows of a container."""
        found: dict[str, Any] = json.loads(self.podman("container", "inspect", container))[0]
        return found

    def health(self, container: str) -> str:
        """`starting`, `healthy`, `unhealthy`; empty where the container has no health check."""
        return str(self.inspect(container)["State"].get("Health", {}).get("Status", ""))

    def has_image(self, tag: str) -> bool:
        """Whether the store has an image of this name."""
        try:
            self.podman("image", "exists", tag)
        except CommandFailedError:
            return False
        return True

    def label(self, tag: str, name: str) -> str:
        """An image's label; empty where there is no such image, or it has no such label."""
        if not self.has_image(tag):
            return ""
        found: dict[str, Any] = json.loads(self.podman("image", "inspect", tag))[0]
        return str((found.get("Labels") or {}).get(name, ""))

    @property
    def _socket(self) -> Path:
        return self.directory / "podman.sock"

    def _first_steps(self) -> str:
        """What the first process does in its namespaces before it waits and reaps.

        crun refuses a cgroup hierarchy that is half v1 and half v2: its v2 half is hidden here.
        """
        cache, ready = self.directory / "ld.so.cache", self.directory / "ready"
        steps = [
            "set -e",
            "ip link set lo up",
            "! mountpoint -q /sys/fs/cgroup/unified || umount /sys/fs/cgroup/unified",
            "mount -t tmpfs tmpfs /run",
            "mkdir -p /run/lock",
            "mount -t tmpfs tmpfs /dev/shm",
            f"mount --bind {shlex.quote(str(cache))} /etc/ld.so.cache",
            f"touch {shlex.quote(str(ready))}",
            f"exec {shlex.quote(str(tools() / 'root/usr/bin/catatonit'))} -P",
        ]
        return "\n".join(steps)

    def _settings(self) -> None:
        """The files that podman and buildah read, and a cache of libraries with the tools' own."""
        home = self.directory / "home" / ".config" / "containers"
        home.mkdir(parents=True, exist_ok=True)
        (home / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}\n')
        plugins = self.directory / "home" / ".docker" / "cli-plugins"
        plugins.mkdir(parents=True, exist_ok=True)
        plugin = plugins / "docker-compose"
        plugin.unlink(missing_ok=True)
        plugin.symlink_to(compose() / "usr/libexec/docker/cli-plugins/docker-compose")
        tree = tools()
        # podman asks for a million, which not every machine lets it have
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        processes = resource.getrlimit(resource.RLIMIT_NPROC)[1]
        (self.directory / "storage.conf").write_text(
            "[storage]\n"
            'driver = "overlay"\n'
            f'graphroot = "{self.store}"\n'
            f'runroot = "{self.directory / "run"}"\n'
            # else one process hides what another one has mounted
            "[storage.options.overlay]\n"
            'skip_mount_home = "true"\n'
        )
        (self.directory / "registries.conf").write_text(
            'unqualified-search-registries = ["docker.io"]\n'
        )
        (self.directory / "containers.conf").write_text(
            "[containers]\n"
            'cgroups = "disabled"\n'
            f'init_path = "{tree}/root/usr/bin/catatonit"\n'
            f'seccomp_profile = "{tree}/root/usr/share/containers/seccomp.json"\n'
            f'default_ulimits = ["nofile={files}:{files}", "nproc={processes}:{processes}"]\n'
            "[network]\n"
            'network_backend = "netavark"\n'
            f'network_config_dir = "{self.directory / "networks"}"\n'
            "[engine]\n"
            'cgroup_manager = "cgroupfs"\n'
            'events_logger = "file"\n'
            'lock_type = "file"\n'
            'runtime = "crun"\n'
            f'conmon_path = ["{tree}/root/usr/bin/conmon"]\n'
            f'helper_binaries_dir = ["{tree}/root/usr/lib/podman"]\n'
            f'tmp_dir = "{self.directory / "tmp"}"\n'
            "[engine.runtimes]\n"
            f'crun = ["{tree}/root/usr/bin/crun"]\n'
        )
        libraries = [tree / "root" / name for name in ("usr/lib", "lib")]
        _, triplet = apt.architecture()
        found = [str(folder / triplet) for folder in libraries if (folder / triplet).is_dir()]
        cache = str(self.directory / "ld.so.cache")
        ldconfig = _found("ldconfig") or "ldconfig"
        subprocess.run([ldconfig, "-X", "-C", cache, *found], check=True, capture_output=True)

    def _environment(self) -> dict[str, str]:
        tree = tools()
        _, triplet = apt.architecture()
        return {
            **os.environ,
            "PATH": f"{tree}/bin:{os.environ['PATH']}:/usr/sbin:/sbin",
            "HOME": str(self.directory / "home"),
            "TMPDIR": str(self.directory),
            "XTABLES_LIBDIR": f"{tree}/root/usr/lib/{triplet}/xtables",
            "CONTAINERS_CONF": str(self.directory / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self.directory / "storage.conf"),
            "CONTAINERS_REGISTRIES_CONF": str(self.directory / "registries.conf"),
            "BUILDAH_ISOLATION": "chroot",
        }

    def _enter(self, *, host_network: bool) -> list[str]:
        """What leads a command into the namespaces of the engine's first process."""
        if self._process is None:
            raise CommandFailedError("the engine is not up")
        held = _child_of(self._process.pid)
        spaces = ["--mount", "--pid", "--ipc", *([] if host_network else ["--net"])]
        return ["nsenter", f"--target={held}", *spaces, f"--wd={Path.cwd()}", "--"]

    def _serve(self) -> None:
        """The socket of podman; it ends with the namespaces."""
        log = self.directory / "service.log"
        service = ["podman", "system", "service", "--time=0", f"unix://{self._socket}"]
        process = spawn(
            [*self._enter(host_network=False), *service], log, environment=self._environment()
        )
        wait_ready(process, self._socket.exists, log, what="podman's service")

    def _clear(self) -> None:
        """No container, and no volume; images stay."""
        self.podman("rm", "--all", "--force", "--time", "2", "--volumes")
        self.podman("volume", "rm", "--all", "--force")

    def _look_after(self) -> None:
        """Run each running container's health check, as systemd's timers would."""
        while not self._ended.wait(HEALTH_SECONDS):
            with suppress(CommandFailedError, subprocess.TimeoutExpired, OSError):
                wanted = "{{if .Config.Healthcheck}}{{.Id}}{{end}}"
                running = self.podman("ps", "--quiet", "--filter", "status=running").split()
                for one in running and self.podman("inspect", "-f", wanted, *running).split():
                    with suppress(CommandFailedError):
                        self.podman("healthcheck", "run", one)


def _found(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def _child_of(pid: int) -> int:
    """The only child of a process: `unshare --fork` stays outside of the namespaces it makes."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    if not children:
        raise CommandFailedError("the engine's first process has ended")
    return int(children[0])


def built(engine: Engine, tag: str, dockerfile: str, context: Path, *options: str) -> None:
    """Build an image from a Dockerfile's text, with the machine's network."""
    file = engine.directory / "Dockerfile"
    file.write_text(dockerfile)
    arguments: Sequence[str] = ["--format", "docker", "--pull-never", "--layers", *options]
    engine.buildah("build", *arguments, "-f", str(file), "-t", tag, str(context), host_network=True)
