// What tokenizers ask of Unicode. Texts are UTF-8; code points are what decode_utf8() gives.
#pragma once
#include <string>
#include <string_view>

namespace vitrum {

extern const std::string_view kUnicodeTable;  // unicode.txt, see tools/dev/make_unicode_table.py

bool is_letter(char32_t c);  // of category L
bool is_number(char32_t c);  // of category N
bool is_space(char32_t c);   // White_Space

void append_utf8(std::string& text, char32_t c);

// Each character by itself: a sigma at the end of a word becomes one inside a word.
std::string lower_case(std::string_view text);
// Normalization form C: what has one code point gets it.
std::string composed(std::string_view text);
// Runs of white space become one blank each; with `strip` none at both ends.
std::string single_spaced(std::string_view text, bool strip);

}  // namespace vitrum
