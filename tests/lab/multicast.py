"""Host 0 sends numbered datagrams to a group, in super-packets; the others say what they missed.

usage, at every host: multicast.py RANK NODES ADDRESS-OF-0 COUNT      (addresses of either family; a receiver prints: lost longest-run first-ten)
Receivers announce themselves until they hear the group, so nothing depends on who starts first.
"""
import json
import socket
import struct
import sys
import time

rank, nodes, server, count = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
six = ":" in server
family = socket.AF_INET6 if six else socket.AF_INET
group, port, index = ("ff05::77:1" if six else "239.77.0.1"), 7700, socket.if_nametoindex("eth0")
size, batch, last = 1000, 40, 0xFFFFFFFF
deadline = time.monotonic() + 20

unicast = socket.socket(family, socket.SOCK_DGRAM)
unicast.settimeout(0.02)
if rank == 0:
    unicast.bind((server, port + 1))
    if six:
        unicast.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
        unicast.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 1)
    else:
        unicast.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, struct.pack("4s4si", b"", b"", index))

    def gather(word, numbers):
        """Sends the numbers to the group until every receiver has answered with the word."""
        heard = set()
        while len(heard) < nodes - 1:
            if time.monotonic() > deadline:
                sys.exit(f"only {sorted(heard)} answered {word!r}")
            for number in numbers:
                unicast.sendto(struct.pack("<I", number), (group, port))
            try:
                while True:
                    said, _ = unicast.recvfrom(100)
                    if said.startswith(word):
                        heard.add(said)
            except socket.timeout:
                pass

    gather(b"here", [])
    unicast.setsockopt(socket.SOL_UDP, 103, size)  # UDP_SEGMENT
    for first in range(0, count, batch):
        numbers = range(first, min(first + batch, count))
        unicast.sendto(b"".join(struct.pack("<I", n).ljust(size, b"\0") for n in numbers), (group, port))
        time.sleep(0.005)
    unicast.setsockopt(socket.SOL_UDP, 103, 0)
    gather(b"done", [last])
else:
    receive = socket.socket(family, socket.SOCK_DGRAM)
    receive.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    receive.bind((group, port))
    if six:
        receive.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, socket.inet_pton(family, group) + struct.pack("i", index))
    else:
        receive.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, struct.pack("4s4si", socket.inet_aton(group), b"", index))
    receive.settimeout(0.02)
    seen = set()
    while True:
        if time.monotonic() > deadline:
            sys.exit(f"no end of the group's data; {len(seen)} of {count} came")
        try:
            number = struct.unpack("<I", receive.recv(2000)[:4])[0]
        except socket.timeout:
            if not seen:
                unicast.sendto(b"here %d" % rank, (server, port + 1))
            continue
        if number == last:
            break
        seen.add(number)
    for _ in range(20):   # each may be lost
        unicast.sendto(b"done %d" % rank, (server, port + 1))
    lost = [n for n in range(count) if n not in seen]
    longest = run = 0
    for n in range(count):
        run = 0 if n in seen else run + 1
        longest = max(longest, run)
    print(json.dumps({"lost": len(lost), "longest": longest, "first": lost[:10]}))
