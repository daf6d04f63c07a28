// Keeps errors that peers and clients cause, in any number, from replacing the texts of other errors (status.h).
#pragma once

namespace gradcast {

/// While one exists, error texts that this thread makes are valid on this thread only, until it has made 64 more.
class ShortTexts {
public:
    ShortTexts();
    ~ShortTexts();
    ShortTexts(const ShortTexts&) = delete;
    ShortTexts& operator=(const ShortTexts&) = delete;
};

}   // namespace gradcast
