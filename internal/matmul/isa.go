package matmul

const lanes = 4 // of a vector
