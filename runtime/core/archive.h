// The shape of an archive of `make dist` below its root: what tools/dist/launcher.cc runs, and what a program finds its root by.
//
//     bin/NAME        the launcher: a static program, which runs the loader on libexec/NAME
//     libexec/NAME    the program as it was built
//     lib/            the loader, the C library, and all other libraries that the programs name
#pragma once

namespace gradcast::archive {

constexpr const char bin[] = "/bin/", libexec[] = "/libexec/", lib[] = "/lib";
constexpr const char loader[] = "/lib/ld-linux-x86-64.so.2";

}   // namespace gradcast::archive
