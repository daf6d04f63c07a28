#include "datasets/picture.h"

#include <cstdlib>
#include <cstring>

#include "datasets/jpeg_errors.h"
#include "datasets/picture_probe.h"
#include "runtime/core/digest.h"
#include "runtime/core/status.h"

namespace gradcast {

namespace {

constexpr int quality = 95;

/// Rows of interleaved pixels go into `jpeg`, which is allocated by libjpeg.
struct Encoder {
    jpeg_compress_struct jpeg{};
    JpegErrors errors{};
    unsigned char* bytes = nullptr;
    unsigned long size = 0;
    Encoder() { errors.install(jpeg.err); }
    Encoder(Encoder&&) = delete;
    ~Encoder() {
        jpeg_destroy_compress(&jpeg);
        std::free(bytes);
    }
    bool run(const Planes& planes, uint8_t* row) {
        if (setjmp(errors.back) != 0) return false;
        jpeg_create_compress(&jpeg);
        jpeg_mem_dest(&jpeg, &bytes, &size);
        jpeg.image_width = planes.W;
        jpeg.image_height = planes.H;
        jpeg.input_components = static_cast<int>(planes.C);
        jpeg.in_color_space = planes.C == 1 ? JCS_GRAYSCALE : JCS_RGB;
        jpeg_set_defaults(&jpeg);
        jpeg_set_quality(&jpeg, quality, TRUE);
        jpeg.dct_method = JDCT_ISLOW;
        jpeg_start_compress(&jpeg, TRUE);
        const size_t plane = size_t{planes.H} * planes.W;
        while (jpeg.next_scanline < jpeg.image_height) {
            const uint8_t* from = planes.pixels.data() + size_t{jpeg.next_scanline} * planes.W;
            for (size_t x = 0; x < planes.W; ++x)
                for (size_t c = 0; c < planes.C; ++c) row[x * planes.C + c] = from[c * plane + x];
            JSAMPROW line = row;
            jpeg_write_scanlines(&jpeg, &line, 1);
        }
        jpeg_finish_compress(&jpeg);
        return true;
    }
};

}   // namespace

void picture_encode(const Planes& planes, std::string* jpeg) {
    GC_ASSERT((planes.C == 1 || planes.C == 3) && planes.H > 0 && planes.W > 0 && planes.H <= picture_side_max &&
              planes.W <= picture_side_max);
    Encoder encoder;
    std::vector<uint8_t> row(size_t{planes.W} * planes.C);
    GC_ASSERT(encoder.run(planes, row.data()));   // it writes to memory: there is nothing that can fail
    jpeg->assign(reinterpret_cast<const char*>(encoder.bytes), encoder.size);
}

struct PictureDecoder::State {
    jpeg_decompress_struct jpeg{};
    JpegErrors errors{};
    bool created = false;
    Cutter cutter;
    std::vector<uint8_t> row;

    bool header(std::span<const uint8_t> bytes) {
        if (setjmp(errors.back) != 0) {
            if (!created) jpeg_destroy_decompress(&jpeg);   // what of it was made
            return false;
        }
        if (!created) jpeg_create_decompress(&jpeg);
        created = true;
        jpeg_mem_src(&jpeg, bytes.data(), bytes.size());
        jpeg_read_header(&jpeg, TRUE);
        return true;
    }
    bool rows(const Part& part) {
        if (setjmp(errors.back) != 0) return false;
        jpeg.out_color_space = jpeg.num_components == 1 ? JCS_GRAYSCALE : JCS_RGB;
        jpeg.dct_method = JDCT_ISLOW;
        jpeg_start_decompress(&jpeg);
        while (jpeg.output_scanline < part.top + part.H) {
            const uint32_t y = jpeg.output_scanline;
            JSAMPROW line = row.data();
            jpeg_read_scanlines(&jpeg, &line, 1);
            if (y >= part.top) cutter.row(y - part.top, row.data() + size_t{part.left} * static_cast<size_t>(jpeg.num_components));
        }
        jpeg_abort_decompress(&jpeg);
        return true;
    }
    /// Gives back what the picture took.
    const char* refuse(const char* what) {
        jpeg_abort_decompress(&jpeg);
        return what;
    }
};

namespace {

/// Decoders may differ in how they bring colours to full resolution.  The probe pictures have those of 4:2:0 and 4:2:2; 4:4:4 needs none.
bool resolution_probed(const jpeg_decompress_struct& jpeg) {
    if (jpeg.num_components != 3) return true;
    const jpeg_component_info* of = jpeg.comp_info;
    for (const int i : {1, 2})
        if (of[i].h_samp_factor != 1 || of[i].v_samp_factor != 1) return false;
    return of[0].h_samp_factor <= 2 && of[0].v_samp_factor <= of[0].h_samp_factor && of[0].v_samp_factor >= 1;
}

}   // namespace

PictureDecoder::PictureDecoder() : state_(std::make_unique<State>()) { state_->errors.install(state_->jpeg.err); }

PictureDecoder::~PictureDecoder() { jpeg_destroy_decompress(&state_->jpeg); }

void PictureDecoder::reserve(uint32_t C, uint32_t long_max, uint32_t side) {
    state_->cutter.reserve(C, long_max, side);
    state_->row.reserve(size_t{long_max} * C);
}

const char* PictureDecoder::open(std::span<const uint8_t> jpeg, uint32_t C, uint32_t* H, uint32_t* W) {
    State& s = *state_;
    jpeg_abort_decompress(&s.jpeg);   // of a picture that was not cut
    if (!s.header(jpeg)) return s.refuse(s.errors.message);
    if (s.jpeg.jpeg_color_space == JCS_CMYK || s.jpeg.jpeg_color_space == JCS_YCCK) return s.refuse("it is in CMYK");
    if (s.jpeg.progressive_mode) return s.refuse("it is progressive, and those of a shard are baseline");
    if (jpeg_has_multiple_scans(&s.jpeg) != 0) return s.refuse("its components are in scans of their own, and those of a shard are in one");
    if (!resolution_probed(s.jpeg)) return s.refuse("the resolution of its colours is neither whole nor half, as those of a shard have it");
    if (s.jpeg.arith_code) return s.refuse("its coding is arithmetic, and that of a shard is baseline");
    if (static_cast<uint32_t>(s.jpeg.num_components) != C) return s.refuse(C == 1 ? "it is not grey" : "it is not in colour");
    *H = s.jpeg.image_height;
    *W = s.jpeg.image_width;
    return nullptr;
}

const char* PictureDecoder::cut(const Part& part, uint32_t side, uint8_t* planes) {
    State& s = *state_;
    GC_ASSERT(uint64_t{part.top} + part.H <= s.jpeg.image_height && uint64_t{part.left} + part.W <= s.jpeg.image_width);
    s.row.resize(size_t{s.jpeg.image_width} * static_cast<size_t>(s.jpeg.num_components));
    s.cutter.plan(static_cast<uint32_t>(s.jpeg.num_components), part, side);
    if (!s.rows(part)) return s.refuse(s.errors.message);
    s.cutter.finish(planes);
    return nullptr;
}

const std::string& decoder_digest() {
    static const std::string digest = [] {
        PictureDecoder decoder;
        Sha256 sha;
        for (const std::span<const uint8_t> jpeg : probe_pictures) {
            uint32_t H = 0, W = 0;
            std::vector<uint8_t> planes(3 * probe_side * probe_side);
            const char* wrong = decoder.open(jpeg, 3, &H, &W);
            GC_ASSERT(!wrong && H == probe_side && W == probe_side);   // a part of the sample's size is copied as it is
            GC_ASSERT(!decoder.cut({0, 0, H, W}, probe_side, planes.data()));
            sha.add(std::as_bytes(std::span(planes)));
        }
        return sha.hex().substr(0, 16);
    }();
    return digest;
}

}   // namespace gradcast
