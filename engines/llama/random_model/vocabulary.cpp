#include "vocabulary.h"

#include <cstddef>
#include <cstdio>
#include <string_view>

namespace cachalot::llama {
namespace {

constexpr std::int32_t kNormal = 1, kUnknownKind = 2, kControl = 3, kByte = 6;
// What the tokenizer makes of a space (U+2581).
constexpr const char* kSpace = "\xe2\x96\x81";

void add(RandomVocabulary& vocabulary, std::string text, std::int32_t kind) {
  vocabulary.scores.push_back(kind == kNormal ? -static_cast<float>(vocabulary.texts.size())
                                              : 0.0F);
  vocabulary.texts.push_back(std::move(text));
  vocabulary.kinds.push_back(kind);
}

// Words grow by a letter each, the oldest first, until there are enough.
void add_words(RandomVocabulary& vocabulary, std::size_t tokens) {
  constexpr std::string_view kLetters[] = {"bdfghjklmnprstvz", "aeiou"};
  const std::size_t first = vocabulary.texts.size();
  add(vocabulary, kSpace, kNormal);
  for (std::size_t grown = first; vocabulary.texts.size() < tokens; ++grown) {
    const std::string word = vocabulary.texts[grown];
    const std::size_t letters = word.size() - std::string_view(kSpace).size();
    for (const char letter : kLetters[letters % 2]) {
      if (vocabulary.texts.size() == tokens) return;
      add(vocabulary, word + letter, kNormal);
    }
  }
}

}  // namespace

RandomVocabulary RandomVocabulary::make(std::uint32_t tokens) {
  RandomVocabulary vocabulary;
  add(vocabulary, "<unk>", kUnknownKind);
  for (const char* control : {"<s>", "</s>", "<|im_start|>", "<|im_end|>"}) {
    add(vocabulary, control, kControl);
  }
  for (unsigned byte = 0; byte < 256; ++byte) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", byte);
    add(vocabulary, text, kByte);
  }
  add_words(vocabulary, tokens);
  return vocabulary;
}

}  // namespace cachalot::llama
