// Squares to draw letters in, with a mouse, a finger or the keyboard. What is drawn is sent a moment after the pen is
// lifted: of every square the ink of its pixels, from 0 to 255.
const SIDE = 28, PEN = 2.4, PAUSE = 250; // pixels of the model, milliseconds
const squares = [...element.querySelectorAll('canvas')];
const scale = squares[0].width / SIDE;
const pens = new Map(squares.map(square => [square, {x: SIDE / 2, y: SIDE / 2, down: false}]));
let timer;

function line(square, from, to) {
  const ink = square.getContext('2d');
  ink.lineWidth = PEN * scale;
  ink.lineCap = ink.lineJoin = 'round';
  ink.beginPath();
  ink.moveTo(from.x * scale, from.y * scale);
  ink.lineTo(to.x * scale, to.y * scale);
  ink.stroke();
}

function clear(square) {
  square.getContext('2d').clearRect(0, 0, square.width, square.height);
}

function inkOf(square) {
  const small = document.createElement('canvas');
  small.width = small.height = SIDE;
  const ink = small.getContext('2d');
  ink.imageSmoothingQuality = 'high';
  ink.drawImage(square, 0, 0, SIDE, SIDE);
  return Array.from(ink.getImageData(0, 0, SIDE, SIDE).data.filter((_, index) => index % 4 === 3));
}

function send() {
  clearTimeout(timer);
  timer = setTimeout(() => trigger('input', {drawings: squares.map(inkOf)}), PAUSE);
}

function place(square, event) {
  const box = square.getBoundingClientRect();
  return {x: (event.clientX - box.left) / box.width * SIDE, y: (event.clientY - box.top) / box.height * SIDE};
}

function move(square, to) {
  const pen = pens.get(square);
  to = {x: Math.min(Math.max(to.x, 0), SIDE), y: Math.min(Math.max(to.y, 0), SIDE)};
  if (pen.down) line(square, pen, to);
  Object.assign(pen, to);
  const dot = square.nextElementSibling;
  dot.style.left = `${100 * pen.x / SIDE}%`;
  dot.style.top = `${100 * pen.y / SIDE}%`;
  dot.className = pen.down ? 'down' : '';
}

const ARROWS = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]};

for (const square of squares) {
  const pen = pens.get(square);
  square.addEventListener('pointerdown', event => {
    square.setPointerCapture(event.pointerId);
    pen.down = false;
    move(square, place(square, event));
    pen.down = true;
    move(square, pen); // a dot
  });
  square.addEventListener('pointermove', event => {
    if (square.hasPointerCapture(event.pointerId)) move(square, place(square, event));
  });
  square.addEventListener('pointerup', () => { pen.down = false; move(square, pen); send(); });
  square.addEventListener('keydown', event => {
    if (event.key in ARROWS) {
      const [right, down] = ARROWS[event.key];
      move(square, {x: pen.x + right, y: pen.y + down});
    } else if (event.key === ' ' || event.key === 'Enter') {
      pen.down = !pen.down;
      move(square, pen);
      if (!pen.down) send();
    } else if (event.key === 'Delete' || event.key === 'Backspace') {
      clear(square);
      send();
    } else return;
    event.preventDefault();
  });
}

// Letters nobody knows: strokes of points in a square of side 1.
const LETTERS = [
  [[[.25, .2], [.25, .8], [.7, .8]], [[.7, .2], [.45, .5], [.7, .5]]],
  [[[.2, .75], [.5, .2], [.8, .75]], [[.5, .2], [.5, .9]], [[.35, .9], [.65, .9]]],
  [[[.2, .3], [.8, .3], [.35, .6], [.8, .85]], [[.2, .6], [.2, .85]]],
];
let shown = -1;

function example() {
  shown = (shown + 1) % LETTERS.length;
  for (const square of squares) {
    clear(square);
    const near = () => (Math.random() - .5) * .1, turn = near() * 3;
    for (const stroke of LETTERS[shown]) {
      const points = stroke.map(([x, y]) => ({x: (x + near() - turn * (y - .5)) * SIDE, y: (y + near() + turn * (x - .5)) * SIDE}));
      points.slice(1).forEach((to, index) => line(square, points[index], to));
    }
  }
  send();
}

element.querySelector('.example').addEventListener('click', example);
element.querySelector('.clear').addEventListener('click', () => { squares.forEach(clear); send(); });
