#include "vitrum/data/optional_codecs.h"

namespace vitrum {

std::vector<CodecStatus> optional_codecs() { return {tiff_status(), heif_status()}; }

}  // namespace vitrum
