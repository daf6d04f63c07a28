// The sample that a PNG or JPEG file becomes: what `gradcastctl import images` trains on and `gradcastctl predict` looks at.
#pragma once
#include <map>
#include <utility>

#include "datasets/image.h"

namespace gradcast {

struct ImageRules {
    uint32_t size = 0;    // image_fit() to this side; 0: as large as the file's
    bool exif = true;     // turned upright as the EXIF orientation says
    bool whole = false;   // image_resize() in place of image_fit(): nothing is cut off
};

/// The names in a folder, sorted bytewise, without those that begin with a dot.  Error: names the folder.
Status image_folder_list(const std::string& path, std::vector<std::string>* names);
/// image_open() of a regular file that is not larger than a shard takes.
Status image_sample_open(const std::string& path, ImageFile* image);
/// The same for the header alone: image->bytes is empty.
Status image_sample_header(const std::string& path, ImageFile* image);
/// Height and width of the sample that the image becomes.
std::pair<uint32_t, uint32_t> image_sample_size(const ImageFile& image, const ImageRules& rules);
/// Error: the long side of what image_resize() would make, or its bytes, are more than a shard takes.
Status image_picture_check(const ImageFile& image, const ImageRules& rules);
/// Decodes into C planes (1 or 3), turns upright and fits to rules.size.  *odd: as of image_decode().  Error: Code::node_memory where the
/// image does not fit into the available memory.
Status image_sample(const ImageFile& image, const ImageRules& rules, uint32_t C, Planes* sample, std::string* odd);

/// Counts oddities of images that are read: how many images have each, and the first one's path.
class ImageOddities {
public:
    void add(const ImageFile& image, const ImageRules& rules, const std::string& odd);
    /// Appends a line for each kind.
    void report(std::vector<std::string>* notes) const;
    /// The oddity; the number of images that have it, and the first one's path.
    using Kinds = std::map<std::string, std::pair<uint64_t, std::string>>;
    const Kinds& kinds() const { return kinds_; }
    void restore(const std::string& what, uint64_t images, const std::string& first) { kinds_[what] = {images, first}; }

private:
    void count(const std::string& what, const std::string& path);
    Kinds kinds_;
};

}   // namespace gradcast
