// For tests: caches of any layout, and copies element by element that share nothing with the plans
// but the names of dimensions. A place is found by Horner's rule over a string of dimensions.
#pragma once

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/rng.h"
#include "kv/block_order.h"
#include "kv/engine_cache.h"
#include "kv/row_plan.h"

namespace cachalot::kv::reference {

// One byte of a cache.
struct Place {
  std::uint64_t part, layer, page, head, token, byte;  // token: of the page; byte: of the content
};

// A cache with tensors of its own, filled with random bytes.
struct Cache {
  CacheShape shape;
  std::string order, tensors;
  std::vector<std::vector<std::uint64_t>> memory;  // words, so that tensors are aligned

  Cache(const CacheShape& of, const Form& form, std::uint64_t seed)
      : shape(of), order(form.order), tensors(form.tensors) {
    base::Rng rng(seed);
    for (std::uint64_t t = 0; t < tensor_count(); ++t) {
      memory.emplace_back((tensor_bytes(t) + 7) / 8);
      for (std::uint64_t& word : memory.back()) word = rng.next();
    }
  }

  std::uint64_t extent(char dimension) const {
    switch (dimension) {
      case 'K':
        return 2;
      case 'L':
        return shape.geometry.layers;
      case 'B':
        return shape.pages;
      case 'H':
        return shape.geometry.attention == Attention::kGrouped ? shape.geometry.kv_heads : 1;
      default:
        return shape.tokens_of_page();
    }
  }
  std::uint64_t tensor_count() const {
    std::uint64_t count = 1;
    for (const char dimension : tensors) count *= extent(dimension);
    return count;
  }
  // Content of both parts where K is in the tensor, of one where it is not.
  std::uint64_t tensor_bytes(std::uint64_t tensor) const {
    const bool both = order.find('K') != std::string::npos;
    std::uint64_t part = 0;
    if (!both) part = tensors.back() == 'K' ? tensor % 2 : tensor / (tensor_count() / 2);
    const std::uint64_t content =
        both ? shape.geometry.content_bytes(0) + shape.geometry.content_bytes(1)
             : shape.geometry.content_bytes(static_cast<std::uint32_t>(part));
    std::uint64_t bytes = content;
    for (const char dimension : order) {
      if (dimension != 'K' && dimension != 'C') bytes *= extent(dimension);
    }
    return bytes;
  }

  std::vector<Tensor> views() {
    std::vector<Tensor> out;
    for (std::uint64_t t = 0; t < memory.size(); ++t) {
      out.push_back({reinterpret_cast<std::byte*>(memory[t].data()), tensor_bytes(t)});
    }
    return out;
  }

  std::byte& at(const Place& place) {
    std::uint64_t tensor = 0, index = 0;
    const auto coordinate = [&](char dimension) {
      return dimension == 'K'   ? place.part
             : dimension == 'L' ? place.layer
             : dimension == 'B' ? place.page
             : dimension == 'H' ? place.head
                                : place.token;
    };
    for (const char dimension : tensors)
      tensor = tensor * extent(dimension) + coordinate(dimension);
    // Elements of latent and rope differ in size: there K is last before C, or numbers tensors.
    const bool ragged = shape.geometry.content_bytes(0) != shape.geometry.content_bytes(1);
    const auto part = static_cast<std::uint32_t>(place.part);
    std::uint64_t content = shape.geometry.content_bytes(part), skipped = 0;
    for (const char dimension : order) {
      if (dimension == 'C') continue;
      if (dimension == 'K' && ragged) {
        content = shape.geometry.content_bytes(0) + shape.geometry.content_bytes(1);
        skipped = part == 0 ? 0 : shape.geometry.content_bytes(0);
        continue;
      }
      index = index * extent(dimension) + coordinate(dimension);
    }
    return reinterpret_cast<std::byte*>(
        memory[tensor].data())[index * content + skipped + place.byte];
  }
};

// Where a byte of a block is in the pool. Ragged parts as in Cache::at, or K outside N ("LKNC").
inline std::uint64_t pool_offset(const KvGeometry& g, const std::string& order, const Place& place,
                                 std::uint64_t block_token) {
  const std::uint64_t sizes[] = {g.content_bytes(0), g.content_bytes(1)};
  if (order == "LKNC") {
    const std::uint64_t layer = (sizes[0] + sizes[1]) * g.block_tokens;
    return place.layer * layer + (place.part == 0 ? 0 : sizes[0] * g.block_tokens) +
           block_token * sizes[place.part] + place.byte;
  }
  const bool ragged = sizes[0] != sizes[1];
  std::uint64_t index = 0;
  for (const char d : order) {
    if (d == 'C' || (d == 'K' && ragged)) continue;
    const std::uint64_t extent = d == 'K'   ? 2
                                 : d == 'L' ? g.layers
                                 : d == 'H' ? std::uint64_t{g.heads()}
                                            : std::uint64_t{g.block_tokens};
    const std::uint64_t coordinate = d == 'K'   ? place.part
                                     : d == 'L' ? place.layer
                                     : d == 'H' ? place.head
                                                : block_token;
    index = index * extent + coordinate;
  }
  if (!ragged) return index * sizes[0] + place.byte;
  return index * (sizes[0] + sizes[1]) + (place.part == 0 ? 0 : sizes[0]) + place.byte;
}

// Calls f(byte in the cache, offset in the block) for each byte of the chosen layers and tokens.
template <class F>
void for_each_byte(Cache& cache, const BlockOrder& block_order,
                   const std::vector<std::uint32_t>& pages, std::uint32_t first_layer,
                   std::uint32_t last_layer, const std::vector<bool>& tokens, F&& f) {
  const KvGeometry& g = cache.shape.geometry;
  const std::string order = block_order.order(g.attention);
  const std::uint32_t page_tokens = cache.shape.tokens_of_page();
  for (std::uint32_t part = 0; part < 2; ++part) {
    for (std::uint64_t layer = first_layer; layer < last_layer; ++layer) {
      for (std::uint64_t token = 0; token < g.block_tokens; ++token) {
        if (!tokens[token]) continue;
        for (std::uint64_t head = 0; head < g.heads(); ++head) {
          for (std::uint64_t byte = 0; byte < g.content_bytes(part); ++byte) {
            const Place place{part, layer, pages[token / page_tokens], head, token % page_tokens,
                              byte};
            f(cache.at(place), pool_offset(g, order, place, token));
          }
        }
      }
    }
  }
}

// What the chosen tokens of each layer and head bring into a cache.
// @param lists   of first_layer head 0, head 1, …: tokens of the chain
// @param blocks  of the chain, as they are in the pool; empty ones bring nothing
inline void place_rows(Cache& cache, const BlockOrder& block_order,
                       const std::vector<std::vector<std::uint32_t>>& lists,
                       const std::vector<std::uint32_t>& pages, TokenPlace where,
                       std::uint32_t first_layer,
                       const std::vector<std::vector<std::byte>>& blocks) {
  const KvGeometry& g = cache.shape.geometry;
  const std::string order = block_order.order(g.attention);
  const std::uint32_t each = cache.shape.tokens_of_page();
  for (std::size_t i = 0; i < lists.size(); ++i) {
    for (std::size_t k = 0; k < lists[i].size(); ++k) {
      const std::uint32_t token = lists[i][k];
      const std::vector<std::byte>& block = blocks[token / g.block_tokens];
      if (block.empty()) continue;
      const std::uint64_t to = where == TokenPlace::kOwn ? token : k;
      for (std::uint32_t part = 0; part < 2; ++part) {
        for (std::uint64_t byte = 0; byte < g.content_bytes(part); ++byte) {
          const Place place{
              part, first_layer + i / g.heads(), pages[to / each], i % g.heads(), to % each, byte};
          cache.at(place) = block[pool_offset(g, order, place, token % g.block_tokens)];
        }
      }
    }
  }
}

}  // namespace cachalot::kv::reference
