// Enough of CUDA to run a kernel on the CPU, one block after another.
//
// Every thread of a block is a coroutine that runs up to the next place where threads wait for each
// other; then the next one runs. All that wait must wait in the same place, or the kernel would hang
// or read nonsense on a device: then emulation ends with an error.

#include <cmath>
#include <cstring>
#include <setjmp.h>
#include <ucontext.h>

#include <tuple>
#include <utility>
#include <vector>

#define __global__
#define __device__ static
#define __shared__ static
#define __syncthreads() cuda_on_cpu::wait(__LINE__)
#define __syncthreads_count(flag) cuda_on_cpu::count(flag, __LINE__)
#define __shfl_xor_sync(mask, value, offset) cuda_on_cpu::exchange(value, offset, __LINE__)

struct Dim3 {
    unsigned x, y, z;
};

static Dim3 gridDim, blockDim, blockIdx, threadIdx;

using std::exp;
using std::log;
using std::sqrt;

static float __int_as_float(unsigned bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

namespace cuda_on_cpu {

const size_t STACK = 1 << 16;

struct Thread {
    ucontext_t context;  // where it starts
    jmp_buf waiting;  // where it goes on: swapcontext would do, but asks the kernel every time
    bool started;
    std::vector<char> stack = std::vector<char>(STACK);
    Dim3 index;
    int place;  // the line that it waits in, 0 once it has returned
    double posted[2];  // what the others may read; two, as a fast thread is one exchange ahead
    unsigned exchanges;
};

static std::vector<Thread> threads;
static jmp_buf scheduler;
static size_t current;
static int flags;  // threads that waited in this round with a posted value other than zero
static void (*body)();
static bool waits, broken;  // whether the kernel may wait; whether it waited though it may not

static Thread& me() { return threads[current]; }

static void wait(int place) {
    if (!waits) {
        broken = true;
        return;
    }
    me().place = place;
    if (!_setjmp(me().waiting)) _longjmp(scheduler, 1);
}

static void post(double value) { me().posted[me().exchanges % 2] = value; }

static int count(bool flag, int place) {
    post(flag);
    wait(place);
    me().exchanges++;
    return flags;
}

template <class Real>
Real exchange(Real value, int offset, int place) {
    post(value);
    wait(place);
    return threads[current ^ offset].posted[me().exchanges++ % 2];
}

static void start() {
    body();
    me().place = 0;
    _longjmp(scheduler, 1);
}

// Run a thread up to its next wait, or its end.
__attribute__((noinline)) static void resume(Thread& t) {
    if (_setjmp(scheduler)) return;
    if (t.started) _longjmp(t.waiting, 1);
    t.started = true;
    setcontext(&t.context);
}

// Threads that wait together: a warp for exchanges, which returns as a whole or not at all.
static bool agree(size_t first, size_t size) {
    for (size_t i = first + 1; i < first + size; i++)
        if (threads[i].place != threads[first].place) return false;
    return true;
}

static bool run_block() {
    size_t size = blockDim.x * blockDim.y * blockDim.z;
    if (threads.size() != size) threads = std::vector<Thread>(size);
    for (size_t i = 0; i < size; i++) {
        Thread& t = threads[i];
        t.index = {unsigned(i % blockDim.x), unsigned(i / blockDim.x % blockDim.y),
                   unsigned(i / blockDim.x / blockDim.y)};
        if (!waits) {  // then a plain call does, and is faster
            threadIdx = t.index;
            body();
            continue;
        }
        t.place = -1;
        t.started = false;
        t.exchanges = 0;
        getcontext(&t.context);
        t.context.uc_stack.ss_sp = t.stack.data();
        t.context.uc_stack.ss_size = STACK;
        t.context.uc_link = nullptr;
        makecontext(&t.context, start, 0);
    }
    for (bool alive = waits; alive;) {
        alive = false;
        for (current = 0; current < size; current++) {
            if (!threads[current].place) continue;
            threadIdx = threads[current].index;
            resume(threads[current]);
            alive = alive || threads[current].place;
        }
        flags = 0;
        for (Thread& t : threads) flags += t.place && t.posted[t.exchanges % 2] != 0;
        for (size_t first = 0; first < size; first += 32)
            if (!agree(first, size - first < 32 ? size - first : 32)) return false;
    }
    return !broken;
}

static bool run_grid(const unsigned* grid, const unsigned* block, bool may_wait, void (*run)()) {
    waits = may_wait;
    broken = false;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    body = run;
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < gridDim.y; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++)
                if (!run_block()) return false;
    return true;
}

// Arguments come as cuLaunchKernel takes them: a pointer to each, of the type that the kernel says.
template <class... Types, size_t... I>
void call(void (*kernel)(Types...), void** arguments, std::index_sequence<I...>) {
    kernel(*static_cast<Types*>(arguments[I])...);
}

template <class... Types>
void call(void (*kernel)(Types...), void** arguments) {
    call(kernel, arguments, std::index_sequence_for<Types...>{});
}

}  // namespace cuda_on_cpu

// What makes `kernel` callable from outside, as run_NAME(grid, block, arguments, waits).
#define CUDA_ON_CPU(kernel)                                                                    \
    static void** kernel##_arguments;                                                          \
    extern "C" int run_##kernel(unsigned* grid, unsigned* block, void** arguments, int waits) { \
        kernel##_arguments = arguments;                                                        \
        return cuda_on_cpu::run_grid(                                                          \
            grid, block, waits, [] { cuda_on_cpu::call(kernel, kernel##_arguments); });        \
    }
