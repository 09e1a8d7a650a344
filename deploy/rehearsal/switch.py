"""A network switch in user space that delays and loses Ethernet frames, for kernels without netem. It needs root.

Usage: python switch.py DELAY_SECONDS LOSS_SHARE INTERFACE...
"""

import heapq
import random
import select
import socket
import sys
import time
from contextlib import suppress

ALL_PROTOCOLS, LONGEST_FRAME = 3, 65_600


def run(delay: float, loss: float, interfaces: list[str]) -> None:
    """Pass frames between interfaces until the process ends; an interface that is down loses its frames."""
    ports = [socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS)) for _ in interfaces]
    for port, interface in zip(ports, interfaces, strict=True):
        port.bind((interface, ALL_PROTOCOLS))
        port.setblocking(False)
    where: dict[bytes, socket.socket] = {}  # by address
    waiting: list[tuple[float, int, socket.socket, bytes]] = []
    n_frames = 0
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, port, frame = heapq.heappop(waiting)
            with suppress(OSError):  # the interface is down, or its queue is full
                port.send(frame)
        timeout = max(0.0, waiting[0][0] - now) if waiting else 1.0
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
            if random.random() < loss:
                continue
            for receiver in receivers:
                n_frames += 1
                heapq.heappush(waiting, (time.monotonic() + delay, n_frames, receiver, frame))


if __name__ == "__main__":
    run(float(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
