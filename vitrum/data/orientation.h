// How a camera was held: the EXIF orientation of JPEG, PNG and WebP files, 1 to 8. TIFF, HEIC
// and AVIF are turned by their decoders.
#pragma once
#include <cstdint>
#include <span>

#include "vitrum/data/image.h"

namespace vitrum {

// As Pillow's getexif() finds it: tag 0x0112 of the EXIF data, else tiff:Orientation of the XMP
// data (not of PNG files). 1, as it is, where there is none or it cannot be read.
int read_orientation(std::span<const uint8_t> encoded);

// Pillow's ImageOps.exif_transpose: turns and mirrors the image so that it stands upright.
void apply_orientation(int orientation, Image& image);

}  // namespace vitrum
