"""An agent that tries to get out of its fence: `hostile_agent.py SCENE` tries each way once.

SCENE is a JSON object with the places and processes that a fence hides. It prints a JSON object: for each way null if
it was refused, or what came of it.
"""

import ctypes
import json
import mmap
import os
import resource
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

SCENE: dict[str, Any] = json.loads(sys.argv[1])
SECRET = "the secret"
libc = ctypes.CDLL(None, use_errno=True)
work, state, other, home = SCENE["work"], SCENE["state"], SCENE["other"], SCENE["home"]
secret_file = f"{state}/secret"
victim = SCENE["victim"]

INHERITED = [name for name in os.listdir("/proc/self/fd") if int(name) > 2 and os.path.exists(f"/proc/self/fd/{name}")]

WAYS: dict[str, Callable[[], Any]] = {}


def way(function: Callable[[], Any]) -> Callable[[], Any]:
    WAYS[function.__name__.replace("_", " ")] = function
    return function


def call(number: int, *arguments: Any) -> int:
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(result)


def done(result: int) -> str:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return "done"


def read(path: str) -> str | None:
    with open(path, "rb") as file:
        return "read" if SECRET.encode() in file.read(1 << 20) else None


# Reading


@way
def open_a_file_of_the_gateway() -> Any:
    return read(secret_file)


@way
def list_the_folder_of_the_gateway() -> Any:
    return [name for name in os.listdir(state) if name == "secret"]


@way
def walk_there_by_descriptors() -> Any:
    folder = os.open("/", os.O_PATH)
    for name in state.split("/")[1:]:
        folder = os.open(name, os.O_PATH, dir_fd=folder)
    return "read" if os.read(os.open("secret", os.O_RDONLY, dir_fd=folder), 20) else None


@way
def open_by_openat2() -> Any:
    how = struct.pack("QQQ", os.O_RDONLY, 0, 0)
    return "read" if os.read(call(437, -100, secret_file.encode(), how, len(how)), 20) else None


@way
def follow_a_symlink_in_the_workspace() -> Any:
    os.symlink(secret_file, f"{work}/link")
    return read(f"{work}/link")


@way
def follow_a_symlink_to_its_folder() -> Any:
    os.symlink(state, f"{work}/folder")
    return read(f"{work}/folder/secret")


@way
def make_a_hard_link_in_the_workspace() -> Any:
    os.link(secret_file, f"{work}/hard")
    return read(f"{work}/hard")


@way
def map_a_file_into_memory() -> Any:
    with open(secret_file, "rb") as file:
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)[:3].decode()


@way
def let_another_program_read() -> Any:
    output = subprocess.run(["cat", secret_file], capture_output=True, text=True, check=False).stdout
    return output or None


@way
def read_from_a_program_in_memory() -> Any:
    program = os.memfd_create("program")
    with open(shutil.which("cat") or "/bin/cat", "rb") as file:
        os.write(program, file.read())
    near, far = os.pipe()
    if (child := os.fork()) == 0:
        os.dup2(far, 1)
        try:
            os.execve(program, ["cat", secret_file], os.environ)  # noqa: S606 - it is the way
        finally:
            os._exit(1)
    os.close(far)
    os.waitpid(child, 0)
    return os.read(near, 20).decode() or None


@way
def read_another_workspace() -> Any:
    return read(f"{other}/secret")


@way
def list_another_workspace() -> Any:
    return os.listdir(other)


@way
def read_the_home_of_another_identity() -> Any:
    return read(SCENE["other_home"] + "/secret")


@way
def read_the_configuration() -> Any:
    return read(SCENE["config"])


@way
def list_the_home_of_the_user() -> Any:
    return [name for name in os.listdir(home) if name == ".ssh" and os.listdir(f"{home}/.ssh")]


@way
def read_the_passwords_of_the_machine() -> Any:
    with open("/etc/shadow", "rb") as file:
        return "read" if file.read() else None


@way
def list_temporary_files_of_others() -> Any:
    return [name for name in os.listdir(SCENE["tmp"]) if name == SCENE["in_tmp"]]


@way
def open_by_a_handle() -> Any:
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
    mount = ctypes.c_int()
    done(libc.name_to_handle_at(-100, secret_file.encode(), handle, ctypes.byref(mount), 0))
    at = os.open(work, os.O_RDONLY)
    descriptor = call(304, at, handle, os.O_RDONLY)
    return "read" if os.read(descriptor, 20) else None


@way
def open_by_io_uring() -> Any:
    parameters = ctypes.create_string_buffer(120)
    ring = call(425, 4, parameters)
    fields = struct.unpack_from("10I", parameters, 0)[:2], struct.unpack_from("10I", parameters, 40)
    entries, offsets = fields[0][0], fields[1]
    submission = mmap.mmap(ring, offsets[6] + entries * 4, offset=0)
    completion_offsets = struct.unpack_from("10I", parameters, 80)
    table = mmap.mmap(ring, entries * 64, offset=0x10000000)
    completion = mmap.mmap(ring, completion_offsets[5] + 32 * entries, offset=0x8000000)
    path = ctypes.create_string_buffer(secret_file.encode())
    entry = struct.pack("<BBHiQQIIQ", 18, 0, 0, -100, 0, ctypes.addressof(path), 0, os.O_RDONLY, 7)
    table[: len(entry)] = entry
    struct.pack_into("<I", submission, offsets[6], 0)
    struct.pack_into("<I", submission, offsets[1], 1)
    call(426, ring, 1, 1, 1, None, 0)
    result = struct.unpack_from("<QiI", completion, completion_offsets[5])[1]
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return "read" if os.read(result, 20) else None


# Changing


def write(path: str) -> str:
    with open(path, "w") as file:
        file.write("x")
    return "written"


def write_and_remove(path: str) -> str:
    written = write(path)
    os.unlink(path)
    return written


@way
def overwrite_a_file_of_the_gateway() -> Any:
    return write(f"{state}/overwritten")


@way
def truncate_a_file_of_the_gateway() -> Any:
    os.truncate(f"{state}/truncated", 0)
    return "truncated"


@way
def remove_a_file_of_the_gateway() -> Any:
    os.unlink(f"{state}/removed")
    return "removed"


@way
def make_a_file_among_those_of_the_gateway() -> Any:
    return write(f"{state}/new")


@way
def make_a_folder_there() -> Any:
    os.mkdir(f"{state}/made")
    return "made"


@way
def make_a_pipe_there() -> Any:
    os.mkfifo(f"{state}/pipe")
    return "made"


@way
def make_a_link_there() -> Any:
    os.symlink(work, f"{state}/symlink")
    return "made"


@way
def move_a_file_of_the_gateway_into_the_workspace() -> Any:
    os.rename(f"{state}/moved", f"{work}/moved")
    return read(f"{work}/moved")


@way
def move_a_file_out_of_the_workspace() -> Any:
    write(f"{work}/token")
    os.rename(f"{work}/token", f"{state}/token")
    return "moved"


@way
def exchange_two_files() -> Any:
    write(f"{work}/exchanged")
    call(316, -100, f"{work}/exchanged".encode(), -100, f"{state}/exchanged".encode(), 2)
    return read(f"{work}/exchanged")


@way
def write_into_another_workspace() -> Any:
    return write(f"{other}/new")


@way
def write_into_a_workspace_to_read() -> Any:
    return write(SCENE["readonly"] + "/new")


@way
def remove_from_a_workspace_to_read() -> Any:
    os.unlink(SCENE["readonly"] + "/removed")
    return "removed"


@way
def add_a_key_for_ssh() -> Any:
    return write(f"{home}/.ssh/authorized_keys")


@way
def change_what_a_shell_runs() -> Any:
    return write(f"{home}/.bashrc")


@way
def change_a_program_of_the_machine() -> Any:
    return write_and_remove(SCENE["system"] + "/acp-gateway-hostile")


@way
def change_the_environment_of_the_gateway() -> Any:
    return write_and_remove(SCENE["python"] + "/acp_gateway_hostile.pth")


@way
def change_where_core_dumps_go() -> Any:
    with open("/proc/sys/kernel/core_pattern", "r+") as file:
        file.write(file.read())
    return "written"


@way
def leave_the_control_group() -> Any:
    with open("/sys/fs/cgroup/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))
    return "left"


@way
def change_the_mode_of_a_file_of_the_gateway() -> Any:
    os.chmod(secret_file, stat.S_IMODE(os.stat(secret_file).st_mode))
    return "changed"


@way
def change_the_times_of_a_file_of_the_gateway() -> Any:
    os.utime(secret_file)
    return "changed"


@way
def write_by_a_descriptor_that_was_opened_to_read() -> Any:
    descriptor = os.open(SCENE["readonly"] + "/shown", os.O_RDONLY)
    return write(f"/proc/self/fd/{descriptor}")


@way
def put_a_link_in_place_of_the_workspace() -> Any:
    os.rename(work, f"{work}.moved")
    os.symlink(state, work)
    os.unlink(work)
    os.rename(f"{work}.moved", work)
    return "put"


@way
def read_temporary_files_of_another_agent() -> Any:
    return read(SCENE["temporary"] + "/secret")


# Other processes


@way
def read_the_environment_of_another_process() -> Any:
    return read(f"/proc/{victim}/environ")


@way
def read_the_memory_of_another_process() -> Any:
    address = SCENE["address"]
    with open(f"/proc/{victim}/mem", "rb", 0) as file:
        file.seek(address)
        return file.read(4).decode()


@way
def list_the_memory_of_another_process() -> Any:
    with open(f"/proc/{victim}/maps") as file:
        return "read" if file.read() else None


@way
def go_by_the_root_of_another_process() -> Any:
    return read(f"/proc/{victim}/root{secret_file}")


@way
def go_by_the_directory_of_another_process() -> Any:
    return read(f"/proc/{victim}/cwd/secret")


@way
def go_by_a_descriptor_of_another_process() -> Any:
    return read(f"/proc/{victim}/fd/{SCENE['descriptor']}")


@way
def go_by_ones_own_root() -> Any:
    return read(f"/proc/self/root{secret_file}")


@way
def trace_another_process() -> Any:
    result = libc.ptrace(16, victim, None, None)
    if result == 0:
        os.waitpid(victim, 0)
        libc.ptrace(17, victim, None, None)
    return done(result)


@way
def seize_another_process() -> Any:
    result = libc.ptrace(0x4206, victim, None, None)
    if result == 0:
        libc.ptrace(17, victim, None, None)
    return done(result)


@way
def copy_from_the_memory_of_another_process() -> Any:
    buffer = ctypes.create_string_buffer(4)
    near = struct.pack("QQ", ctypes.addressof(buffer), 4)
    far = struct.pack("QQ", SCENE["address"], 4)
    call(310, victim, near, 1, far, 1, 0)
    return buffer.value.decode()


@way
def take_a_descriptor_of_another_process() -> Any:
    descriptor = call(438, call(434, victim, 0), SCENE["descriptor"], 0)
    return "read" if os.pread(descriptor, 20, 0) else None


@way
def signal_another_process() -> Any:
    os.kill(victim, signal.SIGCONT)
    return "signalled"


@way
def signal_its_process_group() -> Any:
    os.killpg(os.getpgid(victim), signal.SIGCONT)
    return "signalled"


@way
def signal_it_by_descriptor() -> Any:
    signal.pidfd_send_signal(os.pidfd_open(victim), signal.SIGCONT)
    return "signalled"


@way
def signal_it_with_a_value() -> Any:
    call(129, victim, signal.SIGCONT, struct.pack("iiii", signal.SIGCONT, 0, -1, 0) + bytes(112))
    return "signalled"


@way
def slow_another_process() -> Any:
    os.setpriority(os.PRIO_PROCESS, victim, os.getpriority(os.PRIO_PROCESS, victim))
    return "set"


@way
def limit_another_process() -> Any:
    resource.prlimit(victim, resource.RLIMIT_CORE, resource.prlimit(victim, resource.RLIMIT_CORE))
    return "limited"


@way
def read_the_command_of_another_process() -> Any:
    return read(f"/proc/{victim}/cmdline")


@way
def go_by_the_root_of_the_first_process() -> Any:
    return read(f"/proc/1/root{secret_file}")


@way
def sample_another_process() -> Any:
    return call(298, struct.pack("IIQQ", 1, 112, 0, 0) + bytes(88), victim, -1, -1, 0)


@way
def read_the_log_of_the_kernel() -> Any:
    return call(103, 3, ctypes.create_string_buffer(1000), 1000)


@way
def type_in_the_terminal_of_the_user() -> Any:
    return os.write(os.open(SCENE["terminal"], os.O_RDWR | os.O_NOCTTY), b"x")


# Sockets


def connect(path: str) -> str:
    with socket.socket(socket.AF_UNIX) as near:
        near.settimeout(5)
        near.connect(path)
    return "connected"


@way
def connect_to_the_socket_of_the_gateway() -> Any:
    return connect(f"{state}/socket")


@way
def connect_to_a_socket_of_docker() -> Any:
    return connect(SCENE["sockets"] + "/docker.sock")


@way
def connect_to_a_socket_of_ssh_agent() -> Any:
    return connect(SCENE["sockets"] + "/agent.1")


@way
def connect_to_a_socket_of_d_bus() -> Any:
    return connect(SCENE["sockets"] + "/bus")


@way
def connect_to_a_socket_without_a_path() -> Any:
    return connect("\0" + SCENE["abstract"])


@way
def send_to_a_socket_without_a_path() -> Any:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as near:
        near.sendto(b"x", "\0" + SCENE["abstract"] + "-datagrams")
    return "sent"


@way
def connect_to_a_forbidden_port() -> Any:
    with socket.create_connection(("127.0.0.1", SCENE["port"]), timeout=5):
        return "connected"


def listen(*address: Any) -> Any:
    if os.readlink("/proc/self/ns/net") != SCENE["network"]:
        return None  # Others do not reach a network of its own.
    with socket.socket() as server:
        if address:
            server.bind(*address)
        server.listen()
        return server.getsockname()


@way
def listen_at_a_port_of_all_interfaces() -> Any:
    return listen(("", SCENE["free"]))


@way
def listen_at_any_free_port() -> Any:
    return listen(("", 0))


@way
def listen_without_naming_a_port() -> Any:
    return listen()


@way
def connect_to_it_by_multipath_tcp() -> Any:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262) as near:
        near.connect(("127.0.0.1", SCENE["port"]))
        return "connected"


@way
def connect_to_it_with_the_first_bytes() -> Any:
    with socket.socket() as near:
        near.sendto(b"x", 0x20000000, ("127.0.0.1", SCENE["port"]))
        return near.getpeername()


@way
def send_a_datagram_to_it() -> Any:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as near:
        near.connect(("127.0.0.1", SCENE["datagrams"]))
        near.send(b"x")
        near.settimeout(0.2)
        return "sent" if near.send(b"x") else None


# Privileges


@way
def use_a_descriptor_that_was_inherited() -> Any:
    return INHERITED


@way
def gain_privileges_by_a_program() -> Any:
    return None if libc.prctl(39, 0, 0, 0, 0) == 1 else "may"


@way
def mount_a_folder() -> Any:
    os.makedirs(f"{work}/mounted", exist_ok=True)
    done(libc.mount(state.encode(), f"{work}/mounted".encode(), None, 4096, None))
    found = read(f"{work}/mounted/secret")
    libc.umount2(f"{work}/mounted".encode(), 2)
    return found


def in_child(function: Callable[[], Any]) -> Any:
    near, far = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.write(far, str(function() or "").encode())
        except OSError:
            pass
        finally:
            os._exit(0)
    os.close(far)
    os.waitpid(child, 0)
    return os.read(near, 100).decode() or None


@way
def enter_the_mounts_of_another_process() -> Any:
    def enter() -> Any:
        done(libc.setns(os.open(f"/proc/{victim}/ns/mnt", os.O_RDONLY), 0))
        return read(secret_file)

    return in_child(enter)


@way
def mount_in_namespaces_of_ones_own() -> Any:
    def mount() -> Any:
        done(libc.unshare(0x10000000 | 0x00020000))
        return mount_a_folder()

    return in_child(mount)


@way
def unmount_what_hides() -> Any:
    def unmount() -> Any:
        libc.unshare(0x10000000 | 0x00020000)
        for path in ("/", "/proc", "/dev", "/etc", os.path.dirname(state), state):
            libc.umount2(path.encode(), 2)
        return read(secret_file)

    return in_child(unmount)


@way
def change_the_root() -> Any:
    def change() -> Any:
        folder = os.open("/", os.O_RDONLY)
        os.makedirs(f"{work}/root", exist_ok=True)
        os.chroot(f"{work}/root")
        os.fchdir(folder)
        for _ in range(50):
            os.chdir("..")
        os.chroot(".")
        return read(secret_file)

    return in_child(change)


@way
def make_a_device_of_the_memory() -> Any:
    os.mknod(f"{work}/kmsg", 0o600 | stat.S_IFCHR, os.makedev(1, 11))
    return "opened" if os.open(f"{work}/kmsg", os.O_RDONLY | os.O_NONBLOCK) else None


@way
def share_memory_with_others() -> Any:
    found = libc.shmget(SCENE["shm"], 4, 0)
    return "attached" if found >= 0 else None


@way
def use_a_message_queue_of_others() -> Any:
    return "opened" if call(240, SCENE["queue"].encode(), os.O_RDONLY, 0, None) else None


@way
def read_a_key_that_the_kernel_keeps() -> Any:
    key = call(250, 10, -4, b"user", SCENE["queue"].encode(), 0)
    kept = ctypes.create_string_buffer(20)
    call(250, 11, key, kept, 20)
    return kept.value.decode()


@way
def use_shared_memory_of_others() -> Any:
    return read("/dev/shm/" + SCENE["in_shm"])


def tries() -> Iterator[tuple[str, Any]]:
    for name, function in WAYS.items():
        try:
            yield name, function() or None
        except OSError:
            yield name, None


if __name__ == "__main__":
    sys.stdout.write(json.dumps(dict(tries())))
