"""Cuts CUDA's math libraries out of what a PyTorch wheel's libraries load at start.

A CUDA build of PyTorch names cuBLAS, cuDNN, NCCL and others (3 GB unpacked) as needed libraries, though
on the CPU not one of their functions is called. This program takes those names out of the dynamic
section of the given ELF files (DT_NEEDED) and their entries out of the version table
(DT_VERNEED), in place; nothing is added. A function of theirs is then looked for when it is first called and
not at load, which is what the RTLD_LAZY of setup/oracles.sh is for; on a CPU that never happens.

Use: cut_libraries.py PREFIX[,PREFIX...] FILE...   (prefixes of library names: libcublas,libcudnn)
Only for the Python oracles of the tests; the orrery binary links libtorch_cpu and needs none of this.
"""

import mmap
import struct
import sys

PT_LOAD, PT_DYNAMIC = 1, 2
DT_NULL, DT_NEEDED, DT_STRTAB = 0, 1, 5
DT_VERNEED, DT_VERNEEDNUM = 0x6FFFFFFE, 0x6FFFFFFF


class Elf:
    """The dynamic section of a 64-bit little-endian ELF file (x86-64, aarch64), edited in place."""

    def __init__(self, image):
        if image[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a 64-bit little-endian ELF file")
        self.image = image
        (phoff,) = struct.unpack_from("<Q", image, 32)
        phentsize, phnum = struct.unpack_from("<HH", image, 54)
        self.loads = []
        dynamic = None
        for i in range(phnum):
            kind, _, offset, vaddr, _, filesz = struct.unpack_from("<IIQQQQ", image, phoff + i * phentsize)
            if kind == PT_LOAD:
                self.loads.append((vaddr, offset, filesz))
            elif kind == PT_DYNAMIC:
                dynamic = (offset, filesz)
        if dynamic is None:
            raise ValueError("no dynamic section")
        self.dynamic_offset, size = dynamic
        self.slots = size // 16
        self.entries = []
        for i in range(self.slots):
            tag, value = struct.unpack_from("<QQ", image, self.dynamic_offset + 16 * i)
            if tag == DT_NULL:
                break
            self.entries.append((tag, value))
        self.strings = self.offset_of(self.value(DT_STRTAB))

    def value(self, tag):
        return next((v for t, v in self.entries if t == tag), None)

    def offset_of(self, vaddr):
        for start, offset, size in self.loads:
            if start <= vaddr < start + size:
                return vaddr - start + offset
        raise ValueError("address 0x%x is in no segment" % vaddr)

    def text(self, index):
        start = self.strings + index
        return self.image[start : self.image.find(b"\0", start)].decode()

    def cut_needed(self, unwanted):
        """Returns the names cut from the list of needed libraries."""
        cut = [self.text(v) for t, v in self.entries if t == DT_NEEDED and unwanted(self.text(v))]
        self.entries = [(t, v) for t, v in self.entries if t != DT_NEEDED or not unwanted(self.text(v))]
        return cut

    def cut_versions(self, unwanted):
        """Unlinks the unwanted files from the chain of needed versions.

        The symbols keep their version index; an index without an entry means "any version"."""
        address = self.value(DT_VERNEED)
        if address is None:
            return
        records, at = [], self.offset_of(address)
        while True:
            _, _, name, _, following = struct.unpack_from("<HHIII", self.image, at)
            records.append((at, self.text(name)))
            if following == 0:
                break
            at += following
        kept = [at for at, name in records if not unwanted(name)]
        if not kept:
            raise ValueError("no needed version would be left")
        for at, following in zip(kept, kept[1:] + [None]):
            struct.pack_into("<I", self.image, at + 12, 0 if following is None else following - at)
        changed = {DT_VERNEED: address + kept[0] - records[0][0], DT_VERNEEDNUM: len(kept)}
        self.entries = [(t, changed.get(t, v)) for t, v in self.entries]

    def write(self):
        for i in range(self.slots):
            tag, value = self.entries[i] if i < len(self.entries) else (DT_NULL, 0)
            struct.pack_into("<QQ", self.image, self.dynamic_offset + 16 * i, tag, value)


def main():
    prefixes = tuple(sys.argv[1].split(","))
    for path in sys.argv[2:]:
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as image:
            elf = Elf(image)
            unwanted = lambda name: name.startswith(prefixes)
            cut = elf.cut_needed(unwanted)
            elf.cut_versions(unwanted)
            elf.write()
            print("%s: %s" % (path.rsplit("/", 1)[-1], " ".join(cut) if cut else "nothing to cut"))


if __name__ == "__main__":
    main()
