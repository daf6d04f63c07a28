#!/usr/bin/python3
"""Reads an event file of TensorBoard, and prints a line for each scalar: STEP TAG VALUE WALL; of a session's start: STEP start.

Made from the descriptions of the record format and of protobuf alone.  Exit code 1: a checksum or a field is wrong."""
import struct, sys


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def check(data, stored, what):
    crc = crc32c(data)
    if ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF != stored:
        sys.exit("%s: the checksum is wrong" % what)


def records(data):
    at = 0
    while at < len(data):
        length, crc = struct.unpack_from("<QI", data, at)
        check(data[at:at + 8], crc, "length at byte %d" % at)
        record = data[at + 12:at + 12 + length]
        if len(record) < length or at + 16 + length > len(data):
            sys.exit("the record at byte %d is cut off" % at)
        check(record, struct.unpack_from("<I", data, at + 12 + length)[0], "record at byte %d" % at)
        at += 16 + length
        yield record


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return value, at


def fields(data):
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 1:
            value, at = struct.unpack_from("<d", data, at)[0], at + 8
        elif kind == 5:
            value, at = struct.unpack_from("<f", data, at)[0], at + 4
        elif kind == 2:
            length, at = varint(data, at)
            value, at = data[at:at + length], at + length
        else:
            sys.exit("wire type %d is not known" % kind)
        yield key >> 3, value


def main(path):
    with open(path, "rb") as file:
        data = file.read()
    for number, record in enumerate(records(data)):
        event = dict(fields(record))
        if number == 0:
            if event.get(3) != b"brain.Event:2" or 1 not in event:
                sys.exit("the first event does not tell the version")
            continue
        step = event.get(2, 0)
        if 7 in event:
            if dict(fields(event[7])) != {1: 1}:
                sys.exit("a session log that is no start")
            print(step, "start")
        for field, value in fields(event.get(5, b"")):
            scalar = dict(fields(value))
            if field != 1 or set(scalar) != {1, 2}:
                sys.exit("a summary's value has other fields")
            print(step, scalar[1].decode(), repr(scalar[2]), repr(event[1]))


main(sys.argv[1])
