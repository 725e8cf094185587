// One target of libFuzzer: VITRUM_FUZZ_ENTRY names the entry.
#include "fuzz/entries.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  vitrum::fuzz::VITRUM_FUZZ_ENTRY({data, size});
  return 0;
}
