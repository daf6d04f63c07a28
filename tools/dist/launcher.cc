// bin/NAME of an archive of `make dist`: runs the carried loader on libexec/NAME.  It is static, so it needs no library of the host, and it
// is started by any name or link, because it asks /proc/self/exe where it is.
//
// The loader searches the libraries of the archive, then the folders of LD_LIBRARY_PATH.  The environment does not change: what the program
// starts has the libraries that it would have without gradcast.  The program finds the root by the loader's path (runtime/core/program.h).
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <initializer_list>

#include "runtime/core/archive.h"

namespace {

using namespace gradcast;

/// "FORMAT" with its texts in memory of its own, which is never freed: this process becomes another program.
template <class... Texts>
char* text(const char* format, Texts... texts) {
    char* made = nullptr;
    if (asprintf(&made, format, texts...) < 0) _exit(1);
    return made;
}

/// Prints one line to stderr.  Returns the exit code of a program that has failed.
int fail(const char* name, const char* what) {
    fprintf(stderr, "%s: %s\n", name, what);
    return 1;
}

}   // namespace

int main(int argc, char** argv) {
    char self[PATH_MAX];
    const ssize_t size = readlink("/proc/self/exe", self, sizeof self - 1);
    if (size <= 0) return fail(argc > 0 ? argv[0] : "gradcast", "cannot read /proc/self/exe: mount /proc");
    self[size] = 0;
    const char* name = strrchr(self, '/') + 1;
    const size_t bin = sizeof archive::bin - 1, root_bytes = static_cast<size_t>(name - self) - bin;
    if (static_cast<size_t>(name - self) < bin || strncmp(name - bin, archive::bin, bin) != 0)
        return fail(name, text("%s is not in the folder bin of an archive: unpack the archive whole and start bin/%s", self, name));
    const char* root = strndup(self, root_bytes);
    if (!root) return fail(name, strerror(errno));
    // The loader splits its path at colons and semicolons, and replaces words behind a dollar sign.
    if (strpbrk(root, ":;$"))
        return fail(name,
                    text("no library can be found below %s: move the archive to a path without colon, semicolon and dollar sign", root));

    const char* users = getenv("LD_LIBRARY_PATH");
    if (users && !*users) users = nullptr;
    char* path = text("%s%s%s%s", root, archive::lib, users ? ":" : "", users ? users : "");
    char *loader = text("%s%s", root, archive::loader), *program = text("%s%s%s", root, archive::libexec, name);
    char** words = static_cast<char**>(calloc(static_cast<size_t>(argc) + 8, sizeof *words));
    if (!words) return fail(name, strerror(errno));
    size_t count = 0;
    for (char* word : {self, text("--argv0"), self, text("--library-path"), path, program}) words[count++] = word;
    for (int i = 1; i < argc; ++i) words[count++] = argv[i];
    if (access(program, R_OK) != 0) return fail(name, text("%s: %s", program, strerror(errno)));
    execv(loader, words);
    return fail(name, text("%s: %s", loader, strerror(errno)));
}
