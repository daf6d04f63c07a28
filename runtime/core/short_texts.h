// Errors that strangers and clients cause, by the thousand if they like, do not push out the texts of others (status.h).
#pragma once

namespace gradcast {

/// While one lives, the texts of errors that this thread makes are for this thread alone, until it has made 64 others.
class ShortTexts {
public:
    ShortTexts();
    ~ShortTexts();
    ShortTexts(const ShortTexts&) = delete;
    ShortTexts& operator=(const ShortTexts&) = delete;
};

}   // namespace gradcast
