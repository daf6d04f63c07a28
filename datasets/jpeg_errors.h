// How libjpeg reports: an error jumps back to setjmp(), which is called in functions that hold no object with a destructor.  These
// functions also create the library's objects, because that may fail; to destroy an object of zeros does nothing.
#pragma once
#include <csetjmp>
#include <cstdio>
// jpeglib.h needs FILE.
#include <jerror.h>
#include <jpeglib.h>

#include <algorithm>
#include <array>

namespace gradcast {

/// A warning after which every pixel is as it was written is kept in `odd`; every other one is an error.
struct JpegErrors {
    jpeg_error_mgr base;   // first: the library gives it back as the whole
    jmp_buf back;
    char message[JMSG_LENGTH_MAX] = "", odd[JMSG_LENGTH_MAX] = "";

    void install(jpeg_error_mgr*& err) {
        err = jpeg_std_error(&base);
        base.error_exit = [](j_common_ptr jpeg) {
            auto* errors = reinterpret_cast<JpegErrors*>(jpeg->err);
            errors->base.format_message(jpeg, errors->message);
            longjmp(errors->back, 1);
        };
        base.emit_message = [](j_common_ptr jpeg, int level) {
            auto* errors = reinterpret_cast<JpegErrors*>(jpeg->err);
            if (level >= 0) return;   // not a warning
            constexpr std::array harmless{JWRN_EXTRANEOUS_DATA, JWRN_ADOBE_XFORM, JWRN_JFIF_MAJOR, JWRN_NOT_SEQUENTIAL};
            if (std::ranges::find(harmless, errors->base.msg_code) == harmless.end()) errors->base.error_exit(jpeg);
            errors->base.format_message(jpeg, errors->odd);
        };
    }
};

}   // namespace gradcast
