// Keys and values of all sequences in pages of kChunk tokens. A page holds one stretch of positions for every layer and
// KV head; sequences that share a prefix share its pages, and writing into a shared page copies it first.
//
// Rows of a forward pass are pending until they are committed. Those of a chain lie in the sequence's pages at their
// positions, so that committing only moves the length. Those of a tree lie in side pages in row order; attention sees
// them through a copy in logical order, and committing a path writes it to the pages.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "attention.h"
#include "memory.h"

namespace specdec {

struct KvLayer {
    int64_t n_head_kv = 0, head_dim = 0;  // padded, see padded_head_dim
};

// A sequence would exceed the context.
struct ContextFull : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Where keys and values lie within a page.
class KvLayout {
 public:
    KvLayout(std::vector<KvLayer> layers, KvTypes types);

    const std::vector<KvLayer>& layers() const { return layers_; }
    KvTypes types() const { return types_; }
    size_t page_bytes() const { return page_bytes_; }
    uint8_t* k(uint8_t* page, int64_t layer, int64_t head) const { return page + offset(layer, head); }
    uint8_t* v(uint8_t* page, int64_t layer, int64_t head) const { return k(page, layer, head) + k_bytes_[layer]; }
    // Copies one token of every layer and head.
    void copy_token(uint8_t* from, int64_t from_slot, uint8_t* to, int64_t to_slot) const;

 private:
    size_t offset(int64_t layer, int64_t head) const {
        return offsets_[layer] + static_cast<size_t>(head) * (k_bytes_[layer] + v_bytes_[layer]);
    }

    std::vector<KvLayer> layers_;
    KvTypes types_;
    std::vector<size_t> offsets_, k_bytes_, v_bytes_;
    size_t page_bytes_ = 0;
};

// Memory of pages: slabs that are only ever reused, never given back while the cache lives.
class PagePool {
 public:
    explicit PagePool(size_t page_bytes);
    std::shared_ptr<uint8_t> take();
    int64_t pages_in_use() const { return in_use_; }

 private:
    void grow();
    size_t page_bytes_;
    std::vector<Buffer> slabs_;
    std::vector<uint8_t*> free_;
    int64_t in_use_ = 0;
};

class KvCache {
 public:
    KvCache(std::vector<KvLayer> layers, KvTypes types, int64_t n_ctx);
    KvCache(const KvCache&) = delete;
    KvCache& operator=(const KvCache&) = delete;

    const KvLayout& layout() const { return layout_; }
    int64_t n_ctx() const { return n_ctx_; }
    // Bytes of the pages that sequences hold, shared pages counted once.
    size_t bytes_in_use() const { return static_cast<size_t>(pool_.pages_in_use()) * layout_.page_bytes(); }

    // All of these throw std::invalid_argument for an unknown handle or an impossible length.
    int32_t create();
    int32_t fork(int32_t sequence, int64_t length);
    void release(int32_t sequence);
    int64_t length(int32_t sequence) const;
    void truncate(int32_t sequence, int64_t length);

    // Makes room for pending rows. `ids` name them in commit(); `parents` are indices into this list or -1, each
    // before its child. Throws ContextFull and std::bad_alloc; then nothing is pending.
    void begin(int32_t sequence, std::vector<int64_t> ids, std::vector<int64_t> parents);
    // Appends the pending rows `ids`, a path from its root or from the row that was committed last.
    void commit(int32_t sequence, const std::vector<int64_t>& ids);
    void drop_pending(int32_t sequence);

    // Pending rows as a forward pass needs them.
    struct Pending {
        std::vector<int64_t> ids, parents;
        std::vector<int64_t> positions;
        int64_t committed = -1;  // index of the last row that was committed
        bool tree = false;
        std::vector<std::shared_ptr<uint8_t>> side;  // pages of a tree's rows
    };
    struct Slot {
        uint8_t* page;
        int64_t slot;
    };
    const Pending& pending(int32_t sequence) const { return find(sequence).pending; }
    Slot pending_slot(int32_t sequence, int64_t index) const;
    uint8_t* page(int32_t sequence, int64_t chunk) const { return find(sequence).pages[chunk].get(); }

 private:
    using Page = std::shared_ptr<uint8_t>;
    struct Sequence {
        std::vector<Page> pages;
        int64_t length = 0;
        Pending pending;
    };
    const Sequence& find(int32_t sequence) const;
    Sequence& find(int32_t sequence) {
        return const_cast<Sequence&>(static_cast<const KvCache*>(this)->find(sequence));
    }
    void own(Sequence& sequence, int64_t first, int64_t end);
    static void trim(Sequence& sequence);

    KvLayout layout_;
    int64_t n_ctx_;
    PagePool pool_;
    std::unordered_map<int32_t, Sequence> sequences_;
    int32_t next_handle_ = 0;
};

}  // namespace specdec
