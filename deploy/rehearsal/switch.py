"""A network switch in user space that delays and loses Ethernet frames, for kernels without netem. It needs root.

It cuts an interface off in the middle of a write to the store, while a file with the name of the interface exists.

Usage: python switch.py DELAY_SECONDS LOSS_SHARE ORDER_FILE INTERFACE...
"""

import heapq
import json
import random
import re
import select
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

ALL_PROTOCOLS, LONGEST_FRAME = 3, 65_600
LOOK_SECONDS = 0.05

_WRITE = re.compile(rb"PUT (/\S+/pending/\S+) HTTP/1\.1\r\n")
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)


class Cut:
    """The order to cut an interface off when it next writes an array of a shard.

    The bucket gets the first frame of the write, and no other: the body of the request is longer. The file ORDER.cut
    then says which write it was. When the file ORDER is removed, the interface is connected again.
    """

    def __init__(self, order: Path) -> None:
        """Take the path of the file that names the interface; it need not exist yet."""
        self._order = order
        self._interface, self._is_cut = "", False

    def look(self) -> None:
        """Read the order again."""
        try:
            self._interface = self._order.read_text()
        except FileNotFoundError:
            self._interface, self._is_cut = "", False

    def reaches(self, interface: str) -> bool:
        """Return whether frames reach an interface."""
        return not (self._is_cut and interface == self._interface)

    def passes(self, interface: str, frame: bytes) -> bool:
        """Return whether a frame that an interface sends goes on; cut the interface off after the start of a write."""
        if not self.reaches(interface):
            return False
        if interface == self._interface and (write := _WRITE.search(frame)) and (length := _LENGTH.search(frame)):
            path, body_bytes = write[1].decode(), int(length[1])
            arrived = len(frame.partition(b"\r\n\r\n")[2])
            if arrived < body_bytes:
                self._is_cut = True
                text = json.dumps({"path": path, "body_bytes": body_bytes, "arrived_bytes": arrived})
                partial = self._order.with_suffix(".partial")
                partial.write_text(text)
                partial.rename(self._order.with_suffix(".cut"))
        return True


def run(delay: float, loss: float, cut: Cut, interfaces: list[str]) -> None:
    """Pass frames between interfaces until the process ends."""
    ports = [socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS)) for _ in interfaces]
    for port, interface in zip(ports, interfaces, strict=True):
        port.bind((interface, ALL_PROTOCOLS))
        port.setblocking(False)
    names = dict(zip(ports, interfaces, strict=True))
    where: dict[bytes, socket.socket] = {}  # by address
    waiting: list[tuple[float, int, socket.socket, bytes]] = []
    n_frames, looked_at = 0, 0.0
    while True:
        now = time.monotonic()
        if now >= looked_at + LOOK_SECONDS:
            cut.look()
            looked_at = now
        while waiting and waiting[0][0] <= now:
            _, _, port, frame = heapq.heappop(waiting)
            if cut.reaches(names[port]):
                with suppress(OSError):  # the interface is down, or its queue is full
                    port.send(frame)
        timeout = min(LOOK_SECONDS, max(0.0, waiting[0][0] - now)) if waiting else LOOK_SECONDS
        for port in select.select(ports, [], [], timeout)[0]:
            try:
                frame, address = port.recvfrom(LONGEST_FRAME)
            except OSError:
                continue
            if address[2] == socket.PACKET_OUTGOING:
                continue
            to, sender = frame[:6], frame[6:12]
            where[sender] = port
            receivers = [where[to]] if to in where else [other for other in ports if other is not port]
            if random.random() < loss or not cut.passes(names[port], frame):
                continue
            for receiver in receivers:
                n_frames += 1
                heapq.heappush(waiting, (time.monotonic() + delay, n_frames, receiver, frame))


if __name__ == "__main__":
    run(float(sys.argv[1]), float(sys.argv[2]), Cut(Path(sys.argv[3])), sys.argv[4:])
